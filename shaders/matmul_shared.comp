#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef REDUCE
#define MORE_PUSH float divisor;
#endif
#include "matmul.glsl"

// A workgroup makes BM x BN outputs from BK-deep slices of a and b in shared memory; each invocation holds TM x TN
// of them as blocks of 4 x 4 that lie BM / (TM / 4) rows and BN / (TN / 4) columns apart, so that shared memory is
// read as vec4 without bank conflicts. Local size is (BM / TM) * (BN / TN). With REDUCE the results are reduced along
// their columns (tile_reduce.glsl), and only what the tile comes to is stored: [batch][tile along the columns][row].
layout(constant_id = 6) const int BM = 64;
layout(constant_id = 7) const int BN = 64;
layout(constant_id = 8) const int BK = 16;
layout(constant_id = 9) const int TM = 4;
layout(constant_id = 10) const int TN = 4;
layout(constant_id = 11) const bool A_BY_COL = false;  // neighbouring lanes load along m, not k
layout(constant_id = 12) const bool B_BY_ROW = false;  // neighbouring lanes load along k, not n
const int TM4 = TM / 4;
const int TN4 = TN / 4;
const int LANES_M = BM / TM;
const int LANES_N = BN / TN;
const int A_VECS = BK * BM / 4;
const int B_VECS = BK * BN / 4;
const int ACCS = TM * TN4;

shared vec4 a_tile[A_VECS];  // [BK][BM / 4]
shared vec4 b_tile[B_VECS];  // [BK][BN / 4]

#ifdef REDUCE
const int LANES = LANES_M * LANES_N;
#define REDUCE_ID 13
#include "tile_reduce.glsl"
#endif

void main() {
    int local = int(gl_WorkGroupSize.x);
    int lane = int(gl_LocalInvocationID.x);
    int col_blocks = (n + BN - 1) / BN;
    int row_blocks = (m + BM - 1) / BM;
    int group = int(flat_group());
    if (group >= batches() * row_blocks * col_blocks) return;
    int block_col = group % col_blocks * BN;
    int block_row = group / col_blocks % row_blocks * BM;
    ivec3 origin = batch_origin(group / col_blocks / row_blocks);
    int lane_col = lane % LANES_N;
    int lane_row = lane / LANES_N;

    vec4 acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = vec4(0.0);
    for (int k0 = 0; k0 < k; k0 += BK) {
        for (int i = lane; i < BM * BK; i += local) {
            int ki = A_BY_COL ? i / BM : i % BK;
            int row = A_BY_COL ? i % BM : i / BK;
            bool ok = block_row + row < m && k0 + ki < k;
            int at = origin.x + (block_row + row) * a_row + (k0 + ki) * a_col;
            a_tile[ki * (BM / 4) + row / 4][row % 4] = ok ? TO_F32(a[ok ? at : 0]) : 0.0;
        }
        for (int i = lane; i < BN * BK; i += local) {
            int ki = B_BY_ROW ? i % BK : i / BN;
            int col = B_BY_ROW ? i / BK : i % BN;
            bool ok = block_col + col < n && k0 + ki < k;
            int at = origin.y + (k0 + ki) * b_row + (block_col + col) * b_col;
            b_tile[ki * (BN / 4) + col / 4][col % 4] = ok ? TO_F32(b[ok ? at : 0]) : 0.0;
        }
        barrier();
        [[unroll]] for (int ki = 0; ki < BK; ki++) {
            vec4 v[TN4];
            [[unroll]] for (int j = 0; j < TN4; j++) v[j] = b_tile[ki * (BN / 4) + j * LANES_N + lane_col];
            [[unroll]] for (int i = 0; i < TM4; i++) {
                vec4 u = a_tile[ki * (BM / 4) + i * LANES_M + lane_row];
                [[unroll]] for (int r = 0; r < 4; r++) {
                    [[unroll]] for (int j = 0; j < TN4; j++) acc[(i * 4 + r) * TN4 + j] += u[r] * v[j];
                }
            }
        }
        barrier();
    }
    float col_bias[TN];
    int cols[TN];
    [[unroll]] for (int j = 0; j < TN; j++) {
        cols[j] = block_col + (j / 4 * LANES_N + lane_col) * 4 + j % 4;
        col_bias[j] = bias_at(min(cols[j], n - 1), false);
    }
#ifdef REDUCE
    int batch = group / col_blocks / row_blocks;
    int first_output = (TO_PARTS ? batch * col_blocks + group % col_blocks : batch) * m;
    [[unroll]] for (int i = 0; i < TM4; i++) {
        [[unroll]] for (int r = 0; r < 4; r++) {
            Channel channel = channel_of(min(block_row + (i * LANES_M + lane_row) * 4 + r, m - 1));
            [[unroll]] for (int j = 0; j < TN4; j++) {
                float four = nothing();
                [[unroll]] for (int c = 0; c < 4; c++) {
                    float value = finished(acc[(i * 4 + r) * TN4 + j][c], channel, col_bias[j * 4 + c]);
                    if (cols[j * 4 + c] < n) four = combined(four, value);
                }
                fours[four_at(lane, r, j)] = four;
            }
        }
        int row = block_row + i * CHUNK_ROWS;
        reduce_chunk(lane, block_col, (n + 3) / 4 * 4, 1, row, m, first_output + row, 0, divisor);
    }
#else
    [[unroll]] for (int i = 0; i < TM; i++) {
        int row = block_row + (i / 4 * LANES_M + lane_row) * 4 + i % 4;
        Channel channel = channel_of(min(row, m - 1));
        [[unroll]] for (int j = 0; j < TN; j++) {
            float sum = acc[i * TN4 + j / 4][j % 4];
            if (row < m && cols[j] < n) store(origin.z, row, cols[j], sum, channel, col_bias[j]);
        }
    }
#endif
}
