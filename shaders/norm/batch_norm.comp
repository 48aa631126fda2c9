#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(constant_id = 3) const uint ITEMS = 1;

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) readonly restrict buffer Scale { ELEM scale[]; };
layout(set = 0, binding = 2) readonly restrict buffer Bias { ELEM bias[]; };
layout(set = 0, binding = 3) readonly restrict buffer Mean { ELEM mean[]; };
layout(set = 0, binding = 4) readonly restrict buffer Variance { ELEM var[]; };
layout(set = 0, binding = 5) WRITEONLY restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint invocations;
    uint chunk;
    uint channels;
    uint inner;  // elements of one channel of one image
    float eps;
};

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint plane = index / chunk;
    uint lane = index - plane * chunk;
    uint c = plane % channels;
    float slope = LOAD(scale, c) / sqrt(LOAD(var, c) + eps);
    float shift = LOAD(bias, c);
    float center = LOAD(mean, c);
    for (uint k = 0; k < ITEMS; k++) {
        uint i = lane + k * chunk;
        if (i >= inner) continue;
        uint at = plane * inner + i;
        STORE(y, at, (LOAD(x, at) - center) * slope + shift);
    }
}
