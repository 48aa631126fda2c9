#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

layout(constant_id = 3) const bool BYTES = true;
layout(constant_id = 4) const bool SIGNED = false;
layout(constant_id = 5) const bool HAS_ZERO = true;
layout(constant_id = 6) const bool PER_AXIS = true;
layout(constant_id = 7) const bool FOURS = false;  // y is of whole fours

layout(set = 0, binding = 0) readonly restrict buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly restrict buffer Scale { float scale[]; };
layout(set = 0, binding = 2) readonly restrict buffer Zero { uint zero[]; };
layout(set = 0, binding = 3) writeonly restrict buffer Y { float y[]; };
layout(set = 0, binding = 3) writeonly restrict buffer Y4 { vec4 y4[]; };

layout(push_constant) uniform Push {
    uint count;
    uint channels;
    uint inner;
};

int zero_of(uint c) {
    return !HAS_ZERO ? 0 : BYTES ? byte_value(zero[c / 4], c, SIGNED) : int(zero[c]);
}

// Four elements per invocation: one word of bytes.
void main() {
    uint first = 4 * flat_index();
    if (first >= count) return;
    uint word = BYTES ? x[first / 4] : 0u;
    int middle = zero_of(0u);
    float factor = scale[0];
    vec4 four = vec4(0.0);
    for (uint k = 0; k < 4; k++) {
        uint i = first + k;
        if (i >= count) break;
        if (PER_AXIS) {
            uint c = i / inner % channels;
            middle = zero_of(c);
            factor = scale[c];
        }
        int value = BYTES ? byte_value(word, k, SIGNED) : int(x[i]);
        float result = float(value - middle) * factor;
        if (FOURS) four[k] = result;
        else y[i] = result;
    }
    if (FOURS) y4[first / 4] = four;
}
