// Convolution of signed bytes (integer.glsl): what its shaders share. Sums are of 32 bits, and wrap.

#include "integer.glsl"

layout(constant_id = 3) const bool X_SIGNED = false;
layout(constant_id = 4) const bool HAS_X_ZERO = false;
layout(constant_id = 5) const uint RESULT = 0;  // sums, bytes without or with sign

layout(set = 0, binding = 0) readonly restrict buffer X { uint x[]; };
#ifdef FOURS
layout(set = 0, binding = 1) readonly restrict buffer Weight { uvec4 weight[]; };
#else
layout(set = 0, binding = 1) readonly restrict buffer Weight { uint weight[]; };
#endif
layout(set = 0, binding = 2) readonly restrict buffer XZero { uint x_zero_word[]; };
// By output channel: the zero point of the weights, the sum of the weights less that, the bits of the factor, the bias.
// After them the zero point of y, and whether any weights have a zero point.
layout(set = 0, binding = 3) readonly restrict buffer Channels { ivec4 channels[]; };
layout(set = 0, binding = 4) writeonly restrict buffer Y { uint y[]; };

layout(push_constant) uniform Push {
    int n;
    int c_in;
    int h;
    int w;
    int c_out;
    int oh;
    int ow;
    int groups;
    int kh;
    int kw;
    int sh;
    int sw;
    int dh;
    int dw;
    int pt;
    int pl;
};

int x_zero() {
    uint word = HAS_X_ZERO ? x_zero_word[0] : 0u;
    return signed_byte(word ^ flips(X_SIGNED), 0u);
}

// What is stored for a sum of products: itself, or the byte that it becomes.
uint finished(int sum, ivec4 channel, int y_zero) {
    if (RESULT == 0) return uint(sum);
    float v = float(sum + channel.w) * intBitsToFloat(channel.z);
    return uint(saturated(v, y_zero, RESULT == 2)) & 0xFFu;
}
