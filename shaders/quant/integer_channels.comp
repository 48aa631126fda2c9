#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

// What convolutions of bytes need to know of each output channel: Channels of integer_conv.glsl.
layout(constant_id = 3) const bool W_SIGNED = false;
layout(constant_id = 4) const bool Y_SIGNED = false;
layout(constant_id = 5) const bool HAS_W_ZERO = false;
layout(constant_id = 6) const bool HAS_BIAS = false;
layout(constant_id = 7) const bool HAS_SCALES = false;
layout(constant_id = 8) const bool ZERO_PER_CHANNEL = false;
layout(constant_id = 9) const bool SCALE_PER_CHANNEL = false;

layout(set = 0, binding = 0) readonly restrict buffer Weight { uint weight[]; };
layout(set = 0, binding = 1) readonly restrict buffer WZero { uint w_zero[]; };
layout(set = 0, binding = 2) readonly restrict buffer Bias { int bias[]; };
layout(set = 0, binding = 3) readonly restrict buffer XScale { float x_scale[]; };
layout(set = 0, binding = 4) readonly restrict buffer WScale { float w_scale[]; };
layout(set = 0, binding = 5) readonly restrict buffer YScale { float y_scale[]; };
layout(set = 0, binding = 6) readonly restrict buffer YZero { uint y_zero[]; };
layout(set = 0, binding = 7) writeonly restrict buffer Channels { ivec4 channels[]; };

layout(push_constant) uniform Push {
    uint c_out;
    uint taps;
};

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
