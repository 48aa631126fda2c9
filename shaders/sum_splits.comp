#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require
#include "activation.glsl"

// The sum of SPLITS partial results, always in the same order, then bias along the channels and the activation.
layout(constant_id = 3) const uint ACT = 0;
layout(constant_id = 4) const bool HAS_BIAS = false;
layout(constant_id = 5) const uint SPLITS = 2;

layout(push_constant) uniform Push {
    uint total, channels, plane;
    float act_a, act_b;
};

layout(set = 0, binding = 0) readonly restrict buffer Parts { ELEM parts[]; };
layout(set = 0, binding = 1) readonly restrict buffer B { ELEM bias[]; };
layout(set = 0, binding = 2) writeonly restrict buffer Y { ELEM y[]; };

void main() {
    uint index = flat_index();
    if (index >= total) return;
    float sum = 0.0;
    for (uint s = 0; s < SPLITS; s++) sum += TO_F32(parts[s * total + index]);
    if (HAS_BIAS) sum += TO_F32(bias[index / plane % channels]);
    y[index] = FROM_F32(activate(ACT, sum, act_a, act_b));
}
