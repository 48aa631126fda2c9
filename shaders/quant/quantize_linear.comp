#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

// One word of four results per invocation.
void main() {
    uint word = flat_index();
    if (word >= (count + 3) / 4) return;
    uint packed = 0u;
    vec4 values = VEC4 ? x4[word] : vec4(0.0);
    float divisor = scale[0];
    int middle = HAS_ZERO ? byte_value(zero[0], 0u, SIGNED) : 0;
    for (uint k = 0; k < 4; k++) {
        uint i = 4 * word + k;
        if (i >= count) break;
        if (PER_AXIS) {
            uint c = i / inner % channels;
            divisor = scale[c];
            middle = HAS_ZERO ? byte_value(zero[c / 4], c, SIGNED) : 0;
        }
        int value = saturated(divide_to_round(VEC4 ? values[k] : x[i], divisor), middle, SIGNED);
        packed |= (uint(value) & 0xFFu) << (8 * k);
    }
    y[word] = packed;
}
