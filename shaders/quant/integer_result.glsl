// What becomes of the sums of a convolution of signed bytes (integer.glsl).

#include "integer.glsl"

// By output channel: the zero point of the weights, the sum of the weights less that, the bits of the factor, the bias.
// After them the zero point of y, and whether any weights have a zero point.

// What is stored for a sum of products: itself, or the byte that it becomes.
uint finished(int sum, ivec4 channel, int y_zero) {
    if (RESULT == 0) return uint(sum);
    float v = float(sum + channel.w) * intBitsToFloat(channel.z);
    return uint(saturated(v, y_zero, RESULT == 2)) & 0xFFu;
}
