#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "nbits.glsl"
#include "nbits_a.glsl"

// A workgroup makes BM x BN outputs from k-tiles of 16 in shared memory: rows of a, and columns that are unpacked on
// their way there, a word by a lane. Each invocation holds 4 x 4 of the outputs. A k-tile lies in one block.
const int BK = 16;
const int WORDS = BK / VALUES;  // of a column
const int LANES = BM * BN / 16;
const int LANES_N = BN / 4;
// One vec4 more than a row has: lanes that transpose an operand store to different banks.
const int A_ROW = BM / 4 + 1;
const int B_ROW = BN / 4 + 1;

shared vec4 a_tile[BK * A_ROW];
shared vec4 b_tile[BK * B_ROW];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int col_blocks = (n + BN - 1) / BN;
    int group = int(flat_group());
    int block_row = group / col_blocks * BM;
    if (block_row >= m) return;
    int block_col = group % col_blocks * BN;
    int lane_col = lane % LANES_N;
    int lane_row = lane / LANES_N;

    vec4 acc[4];
    [[unroll]] for (int i = 0; i < 4; i++) acc[i] = vec4(0.0);
    for (int first = 0; first < k; first += BK) {
        for (int at = lane; at < BM * BK / 4; at += LANES) {
            int row = at / (BK / 4);
            int step = at % (BK / 4) * 4;
            // Rows past the end repeat the last one and are not stored, as columns.
            vec4 u = steps_of(min(block_row + row, m - 1), first + step);
            [[unroll]] for (int q = 0; q < 4; q++) a_tile[(step + q) * A_ROW + row / 4][row % 4] = u[q];
        }
        for (int at = lane; at < BN * WORDS; at += LANES) {
            int col = at / WORDS;
            int column = min(block_col + col, n - 1);
            int word = first / VALUES + at % WORDS;
            int step = at % WORDS * VALUES;
            uint packed = b[column * row_words + word];
            float middle = zero_at(column, block_of(word));
            float factor = scale_at(column, block_of(word));
            [[unroll]] for (int quad = 0; quad < QUADS; quad++) {
                vec4 v = weights_of(packed, quad, middle, factor);
                [[unroll]] for (int q = 0; q < 4; q++) {
                    b_tile[(step + quad * 4 + q) * B_ROW + col / 4][col % 4] = v[q];
                }
            }
        }
        barrier();
        [[unroll]] for (int ki = 0; ki < BK; ki++) {
            vec4 u = a_tile[ki * A_ROW + lane_row];
            vec4 v = b_tile[ki * B_ROW + lane_col];
            [[unroll]] for (int i = 0; i < 4; i++) acc[i] += u[i] * v;
        }
        barrier();
    }
    [[unroll]] for (int i = 0; i < 4; i++) {
        int row = block_row + lane_row * 4 + i;
        [[unroll]] for (int j = 0; j < 4; j++) {
            int column = block_col + lane_col * 4 + j;
            if (row < m && column < n) store(row, column, acc[i][j]);
        }
    }
}
