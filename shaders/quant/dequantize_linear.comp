#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

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
    vec4 values = vec4(0.0);
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
        if (VEC4) values[k] = result;
        else y[i] = result;
    }
    if (VEC4) y4[first / 4] = values;
}
