// Convolution of signed bytes (integer.glsl): what its shaders share. Sums are of 32 bits, and wrap.

#include "integer_result.glsl"

int x_zero() {
    uint word = HAS_X_ZERO ? x_zero_word[0] : 0u;
    return signed_byte(word ^ flips(X_SIGNED), 0u);
}
