#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "nbits.glsl"
#include "nbits_a.glsl"

// Each invocation makes TM rows of one column: what it reads of a has one address in all lanes. No shared memory.
void main() {
    int local = int(gl_WorkGroupSize.x);
    int col_blocks = (n + local - 1) / local;
    int group = int(flat_group());
    int first_row = group / col_blocks * TM;
    int column = group % col_blocks * local + int(gl_LocalInvocationID.x);
    if (first_row >= m || column >= n) return;

    // Rows past the end repeat the last one and are not stored.
    int row[TM];
    [[unroll]] for (int i = 0; i < TM; i++) row[i] = min(first_row + i, m - 1);
    float acc[TM];
    [[unroll]] for (int i = 0; i < TM; i++) acc[i] = 0.0;
    for (int word = 0; word < row_words; word++) {
        uint packed = b[column * row_words + word];
        float middle = zero_at(column, block_of(word));
        float factor = scale_at(column, block_of(word));
        [[unroll]] for (int quad = 0; quad < QUADS; quad++) {
            vec4 v = weights_of(packed, quad, middle, factor);
            [[unroll]] for (int i = 0; i < TM; i++) acc[i] += dot(steps_of(row[i], word * VALUES + quad * 4), v);
        }
    }
    [[unroll]] for (int i = 0; i < TM; i++) {
        if (first_row + i < m) store(first_row + i, column, acc[i]);
    }
}
