#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

layout(constant_id = 3) const bool BYTES = true;
layout(constant_id = 4) const bool SIGNED = false;
layout(constant_id = 5) const bool HAS_ZERO = true;

layout(set = 0, binding = 0) readonly restrict buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly restrict buffer Scale { float scale[]; };
layout(set = 0, binding = 2) readonly restrict buffer Zero { uint zero[]; };
layout(set = 0, binding = 3) writeonly restrict buffer Y { float y[]; };

layout(push_constant) uniform Push {
    uint count;
    uint channels;
    uint inner;
};

// Four elements per invocation: one word of bytes.
void main() {
    uint first = 4 * flat_index();
    if (first >= count) return;
    uint four = BYTES ? x[first / 4] : 0u;
    for (uint k = 0; k < 4; k++) {
        uint i = first + k;
        if (i >= count) break;
        uint c = channels == 1 ? 0 : i / inner % channels;
        int value = BYTES ? byte_value(four, k, SIGNED) : int(x[i]);
        int middle = !HAS_ZERO ? 0 : BYTES ? byte_value(zero[c / 4], c, SIGNED) : int(zero[c]);
        y[i] = float(value - middle) * scale[c];
    }
}
