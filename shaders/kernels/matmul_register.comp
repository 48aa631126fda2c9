#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef HALF_MATH
#define WIDE 2
#endif
#define F16_DEPTH_COUNTED
#include "products.glsl"
#include "matmul.glsl"

// Each invocation makes TM rows x TN columns, the columns one workgroup apart: lanes read neighbours of b, and the
// address in a is the same in every lane. No shared memory.
const int WIDES = TN / WIDE;
const int ACCS = TM * WIDES;

void main() {
    int local = int(gl_WorkGroupSize.x);
    int col_blocks = (n + local * TN - 1) / (local * TN);
    int row_blocks = (m + TM - 1) / TM;
    int group = int(flat_group());
    if (group >= batches() * row_blocks * col_blocks) return;
    int first_col = group % col_blocks * local * TN + int(gl_LocalInvocationID.x);
    int first_row = group / col_blocks % row_blocks * TM;
    ivec3 origin = batch_origin(group / col_blocks / row_blocks);

    // Rows and columns past the end repeat the last one and are not stored.
    int a_at[TM];
    [[unroll]] for (int i = 0; i < TM; i++) a_at[i] = origin.x + min(first_row + i, m - 1) * a_row;
    int b_at[TN];
    [[unroll]] for (int j = 0; j < TN; j++) b_at[j] = origin.y + min(first_col + j * local, n - 1) * b_col;
    SUMS acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = SUMS(0.0);
    BEGIN_F16_SUMS(REALS, ACCS)
    BEGIN_F16_DEPTH
    int a_step = 0;
    int b_step = 0;
    for (int ki = 0; ki < k; ki++) {
        REALS v[WIDES];
        [[unroll]] for (int j = 0; j < WIDES; j++) {
            v[j] = TWO(LOAD_REAL(b, b_at[j * WIDE] + b_step), LOAD_REAL(b, b_at[j * WIDE + 1] + b_step));
        }
        [[unroll]] for (int i = 0; i < TM; i++) {
            REAL u = LOAD_REAL(a, a_at[i] + a_step);
            [[unroll]] for (int j = 0; j < WIDES; j++) PARTIAL[i * WIDES + j] += u * v[j];
        }
        COUNT_F16_DEPTH(ACCS)
        a_step += a_col;
        b_step += b_row;
    }
    FLUSH_F16_SUMS(REALS, SUMS, ACCS)
    float col_bias[TN];
    [[unroll]] for (int j = 0; j < TN; j++) col_bias[j] = bias_at(min(first_col + j * local, n - 1), false);
    [[unroll]] for (int i = 0; i < TM; i++) {
        int row = first_row + i;
        if (row < m) {
            Channel channel = channel_of(row);
            [[unroll]] for (int j = 0; j < TN; j++) {
                int col = first_col + j * local;
                float sum = ONE_OF(acc[i * WIDES + j / WIDE], j % WIDE);
                if (col < n) store(origin.z, row, col, sum, channel, col_bias[j]);
            }
        }
    }
}
