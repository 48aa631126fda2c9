#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef REDUCE
#define MORE_PUSH float divisor;
#endif
#include "matmul.glsl"

// A workgroup makes BM x BN outputs from BK-deep slices of a and b in shared memory; each invocation holds TM x TN
// of them as blocks of 4 x 4 that lie BM / (TM / 4) rows and BN / (TN / 4) columns apart, so that shared memory is
// read as vec4 without bank conflicts. Local size is (BM / TM) * (BN / TN). Neighbouring lanes load along whichever
// dimension an operand has in a row, by fours where its rows are whole fours. With REDUCE the results are reduced along
// their columns (tile_reduce.glsl), and only what the tile comes to is stored: [batch][tile along the columns][row].
layout(constant_id = 6) const int BM = 64;
layout(constant_id = 7) const int BN = 64;
layout(constant_id = 8) const int BK = 16;
layout(constant_id = 9) const int TM = 4;
layout(constant_id = 10) const int TN = 4;
layout(constant_id = 11) const bool A_BY_COL = false;  // a lies along m, not k
layout(constant_id = 12) const bool B_BY_ROW = false;  // b lies along k, not n
layout(constant_id = 13) const bool A_FOURS = false;
layout(constant_id = 14) const bool B_FOURS = false;
const int TM4 = TM / 4;
const int TN4 = TN / 4;
const int LANES_M = BM / TM;
const int LANES_N = BN / TN;
const int LANES = LANES_M * LANES_N;
const int A_WIDE = A_FOURS ? 4 : 1;
const int B_WIDE = B_FOURS ? 4 : 1;
const int A_COUNT = BM * BK / A_WIDE;
const int B_COUNT = BN * BK / B_WIDE;
const int A_LOADS = (A_COUNT + LANES - 1) / LANES;
const int B_LOADS = (B_COUNT + LANES - 1) / LANES;
const int ACCS = TM * TN4;
// One vec4 more than a row has: lanes that turn an operand store to different banks.
const int A_ROW = BM / 4 + 1;
const int B_ROW = BN / 4 + 1;

layout(set = 0, binding = 0) readonly restrict buffer A4 { vec4 a4[]; };
layout(set = 0, binding = 1) readonly restrict buffer B4 { vec4 b4[]; };

shared vec4 a_tile[BK * A_ROW];
shared vec4 b_tile[BK * B_ROW];

// Where load ``index`` of a slice lies: x is its row or column in the tile, y its depth. Loads of four along the depth
// go by twos, a whole sector, so that the lanes of a subgroup store to different banks.
ivec2 place_of(int index, bool by_depth, int wide, int side) {
    if (!by_depth) return ivec2(index % (side / wide) * wide, index / (side / wide));
    if (wide == 1) return ivec2(index / BK, index % BK);
    return ivec2(index / 2 % side, (index / (2 * side) * 2 + index % 2) * wide);
}

#ifdef REDUCE
#define REDUCE_ID 15
#include "tile_reduce.glsl"
#endif

void main() {
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
    float a_next[A_LOADS * A_WIDE];
    float b_next[B_LOADS * B_WIDE];
    int steps = (k + BK - 1) / BK;
    for (int step = 0; step <= steps; step++) {
        // The slice after the one that is multiplied is on its way meanwhile.
        if (step < steps) {
            [[unroll]] for (int i = 0; i < A_LOADS; i++) {
                ivec2 p = place_of(lane + i * LANES, !A_BY_COL, A_WIDE, BM) + ivec2(block_row, step * BK);
                bool ok = p.x < m && p.y < k && (A_COUNT % LANES == 0 || lane + i * LANES < A_COUNT);
                int at = ok ? origin.x + p.x * a_row + p.y * a_col : 0;
                if (A_FOURS) {
                    vec4 v = ok ? a4[at / 4] : vec4(0.0);
                    [[unroll]] for (int q = 0; q < A_WIDE; q++) a_next[i * A_WIDE + q] = v[q];
                } else {
                    a_next[i] = ok ? TO_F32(a[at]) : 0.0;
                }
            }
            [[unroll]] for (int i = 0; i < B_LOADS; i++) {
                ivec2 p = place_of(lane + i * LANES, B_BY_ROW, B_WIDE, BN) + ivec2(block_col, step * BK);
                bool ok = p.x < n && p.y < k && (B_COUNT % LANES == 0 || lane + i * LANES < B_COUNT);
                int at = ok ? origin.y + p.y * b_row + p.x * b_col : 0;
                if (B_FOURS) {
                    vec4 v = ok ? b4[at / 4] : vec4(0.0);
                    [[unroll]] for (int q = 0; q < B_WIDE; q++) b_next[i * B_WIDE + q] = v[q];
                } else {
                    b_next[i] = ok ? TO_F32(b[at]) : 0.0;
                }
            }
        }
        if (step > 0) {
            [[unroll]] for (int ki = 0; ki < BK; ki++) {
                vec4 v[TN4];
                [[unroll]] for (int j = 0; j < TN4; j++) v[j] = b_tile[ki * B_ROW + j * LANES_N + lane_col];
                [[unroll]] for (int i = 0; i < TM4; i++) {
                    vec4 u = a_tile[ki * A_ROW + i * LANES_M + lane_row];
                    [[unroll]] for (int r = 0; r < 4; r++) {
                        [[unroll]] for (int j = 0; j < TN4; j++) acc[(i * 4 + r) * TN4 + j] += u[r] * v[j];
                    }
                }
            }
            barrier();
        }
        if (step < steps) {
            [[unroll]] for (int i = 0; i < A_LOADS; i++) {
                ivec2 p = place_of(lane + i * LANES, !A_BY_COL, A_WIDE, BM);
                if (A_COUNT % LANES == 0 || lane + i * LANES < A_COUNT) {
                    [[unroll]] for (int q = 0; q < A_WIDE; q++) {
                        ivec2 at = p + (A_BY_COL ? ivec2(q, 0) : ivec2(0, q));
                        a_tile[at.y * A_ROW + at.x / 4][at.x % 4] = a_next[i * A_WIDE + q];
                    }
                }
            }
            [[unroll]] for (int i = 0; i < B_LOADS; i++) {
                ivec2 p = place_of(lane + i * LANES, B_BY_ROW, B_WIDE, BN);
                if (B_COUNT % LANES == 0 || lane + i * LANES < B_COUNT) {
                    [[unroll]] for (int q = 0; q < B_WIDE; q++) {
                        ivec2 at = p + (B_BY_ROW ? ivec2(0, q) : ivec2(q, 0));
                        b_tile[at.y * B_ROW + at.x / 4][at.x % 4] = b_next[i * B_WIDE + q];
                    }
                }
            }
            barrier();
        }
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
