#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

// What convolutions of bytes need to know of each output channel: Channels of integer_conv.glsl.

int zero_of(uint co) {
    uint i = ZERO_PER_CHANNEL ? co : 0u;
    uint word = HAS_W_ZERO ? w_zero[i / 4] : 0u;
    return signed_byte(word ^ flips(W_SIGNED), i);
}

void main() {
    uint co = flat_index();
    if (co > c_out) return;
    if (co == c_out) {
        bool any = false;
        for (uint i = 0; i < (ZERO_PER_CHANNEL ? c_out : 1u); i++) any = any || zero_of(i) != 0;
        channels[co] = ivec4(HAS_SCALES ? byte_value(y_zero[0], 0, Y_SIGNED) : 0, int(any), 0, 0);
        return;
    }
    int zero = zero_of(co);
    int sum = 0;
    for (uint i = co * taps; i < (co + 1) * taps; i++) sum += signed_byte(weight[i / 4] ^ flips(W_SIGNED), i) - zero;
    float factor = 0.0;
    if (HAS_SCALES) {
        float scale = x_scale[0] * w_scale[SCALE_PER_CHANNEL ? co : 0u];
        factor = divide_exactly(scale, y_scale[0]);
    }
    channels[co] = ivec4(zero, sum, floatBitsToInt(factor), HAS_BIAS ? bias[co] : 0);
}
