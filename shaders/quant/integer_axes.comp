#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

// Axes of integer_matmul.glsl. Of zero points and scales: 0 there are none, 1 one, 2 one for each row or column.
layout(constant_id = 3) const bool A_SIGNED = false;
layout(constant_id = 4) const bool B_SIGNED = false;
layout(constant_id = 5) const bool Y_SIGNED = false;
layout(constant_id = 6) const uint A_ZEROS = 0;
layout(constant_id = 7) const uint B_ZEROS = 0;
layout(constant_id = 8) const uint A_SCALES = 0;
layout(constant_id = 9) const uint B_SCALES = 0;

layout(set = 0, binding = 0) readonly restrict buffer AZero { uint a_zero[]; };
layout(set = 0, binding = 1) readonly restrict buffer BZero { uint b_zero[]; };
layout(set = 0, binding = 2) readonly restrict buffer AScale { float a_scale[]; };
layout(set = 0, binding = 3) readonly restrict buffer BScale { float b_scale[]; };
layout(set = 0, binding = 4) readonly restrict buffer YScale { float y_scale[]; };
layout(set = 0, binding = 5) readonly restrict buffer YZero { uint y_zero[]; };
layout(set = 0, binding = 6) writeonly restrict buffer Axes { ivec2 axes[]; };

layout(push_constant) uniform Push {
    uint m;
    uint n;
};

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
