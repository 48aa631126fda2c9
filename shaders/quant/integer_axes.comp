#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

// Axes of integer_matmul.glsl. Of zero points and scales: 0 there are none, 1 one, 2 one for each row or column.

// The factor of a row, or of a column.
float factor(bool is_row, uint at) {
    bool both = A_SCALES == 2 && B_SCALES == 2;
    if (A_SCALES == 0) return 0.0;
    if (both) return is_row ? a_scale[at] : b_scale[at];
    bool by_row = A_SCALES == 2;
    if (is_row != by_row) return 1.0;
    float scale = is_row ? a_scale[at] * b_scale[0] : a_scale[0] * b_scale[B_SCALES == 2 ? at : 0u];
    return divide_exactly(scale, y_scale[0]);
}

void main() {
    uint i = flat_index();
    if (i > m + n) return;
    if (i == m + n) {
        axes[i] = A_SCALES == 0 ? ivec2(0) : ivec2(byte_value(y_zero[0], 0, Y_SIGNED), floatBitsToInt(y_scale[0]));
        return;
    }
    bool is_row = i < m;
    uint own = is_row ? i : i - m;
    uint at = (is_row ? A_ZEROS : B_ZEROS) == 2 ? own : 0u;
    uint word = 0u;
    if (is_row && A_ZEROS != 0) word = a_zero[at / 4];
    if (!is_row && B_ZEROS != 0) word = b_zero[at / 4];
    int zero = signed_byte(word ^ flips(is_row ? A_SIGNED : B_SIGNED), at);
    axes[i] = ivec2(zero, floatBitsToInt(factor(is_row, own)));
}
