#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define F16_DEPTH_COUNTED  // k-tiles that are summed in f16, with HALF_MATH
#include "products.glsl"
#ifndef REDUCE
#define VEC4_RESIDUAL
#endif
#include "matmul.glsl"

// A workgroup makes BM x BN outputs from BK-deep k-tiles of a and b in shared memory; each invocation holds TM x TN
// of them as blocks of 4 x 4 that lie BM / (TM / 4) rows and BN / (TN / 4) columns apart, so that shared memory is
// read as vec4 without bank conflicts. Local size is (BM / TM) * (BN / TN). Neighbouring lanes load along whichever
// dimension an operand has in a row, by vec4 where its rows are whole vec4; so do results with Y_VEC4. With REDUCE the results are reduced along
// their columns (reduced.glsl), and what the tile comes to is stored: [batch][tile along the columns][row]; PRODUCT
// stores the results too.
const int TM4 = TM / 4;
const int TN4 = TN / 4;
const int LANES_M = BM / TM;
const int LANES_N = BN / TN;
const int LANES = LANES_M * LANES_N;
const int A_WIDE = A_VEC4 ? 4 : 1;
const int B_WIDE = B_VEC4 ? 4 : 1;
const int A_COUNT = BM * BK / A_WIDE;
const int B_COUNT = BN * BK / B_WIDE;
const int A_LOADS = (A_COUNT + LANES - 1) / LANES;
const int B_LOADS = (B_COUNT + LANES - 1) / LANES;
const int ACCS = TM * TN4;
// One vec4 more than a row has: lanes that transpose an operand store to different banks.
const int A_ROW = BM / 4 + 1;
const int B_ROW = BN / 4 + 1;

const int B_TILE = BK * A_ROW;

shared REAL4 tiles[B_TILE + BK * B_ROW];  // a's k-tile, then b's

// Where load ``index`` of a k-tile lies: x is its row or column in the tile, y its depth.
ivec2 place_of(int index, bool by_depth, int wide, int side) {
    int line = (by_depth ? BK : side) / wide;
    ivec2 place = ivec2(index / line, index % line * wide);
    return by_depth ? place : place.yx;
}

#ifdef REDUCE
#include "addends.glsl"
#include "reduced.glsl"
// Where the tiles were, what each lane's columns come to, for the rows of the tile; one more, for different banks.
const int TOTALS_ROW = BM + 1;
#endif

// A k-tile into registers. These are macros since arrays that a function returns leave the registers.
#define LOAD_K_TILE(step)                                                                            \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                   \
        ivec2 p = place_of(lane + i * LANES, !A_BY_COL, A_WIDE, BM) + ivec2(block_row, (step) * BK); \
        bool ok = p.x < m && p.y < k && (A_COUNT % LANES == 0 || lane + i * LANES < A_COUNT);        \
        int at = ok ? origin.x + p.x * a_row + p.y * a_col : 0;                                      \
        if (A_VEC4) {                                                                                \
            REAL4 v = ok ? LOAD_REAL4(a4, at / 4) : REAL4(0.0);                                      \
            [[unroll]] for (int q = 0; q < A_WIDE; q++) a_next[i * A_WIDE + q] = v[q];               \
        } else {                                                                                     \
            a_next[i] = ok ? LOAD_REAL(a, at) : REAL(0.0);                                           \
        }                                                                                            \
    }                                                                                                \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                   \
        ivec2 p = place_of(lane + i * LANES, B_BY_ROW, B_WIDE, BN) + ivec2(block_col, (step) * BK);  \
        bool ok = p.x < n && p.y < k && (B_COUNT % LANES == 0 || lane + i * LANES < B_COUNT);        \
        int at = ok ? origin.y + p.y * b_row + p.x * b_col : 0;                                      \
        if (B_VEC4) {                                                                                \
            REAL4 v = ok ? LOAD_REAL4(b4, at / 4) : REAL4(0.0);                                      \
            [[unroll]] for (int q = 0; q < B_WIDE; q++) b_next[i * B_WIDE + q] = v[q];               \
        } else {                                                                                     \
            b_next[i] = ok ? LOAD_REAL(b, at) : REAL(0.0);                                           \
        }                                                                                            \
    }

#define STORE_K_TILE                                                                        \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                          \
        ivec2 p = place_of(lane + i * LANES, !A_BY_COL, A_WIDE, BM);                        \
        if (A_COUNT % LANES == 0 || lane + i * LANES < A_COUNT) {                           \
            [[unroll]] for (int q = 0; q < A_WIDE; q++) {                                   \
                ivec2 at = p + (A_BY_COL ? ivec2(q, 0) : ivec2(0, q));                      \
                tiles[at.y * A_ROW + at.x / 4][at.x % 4] = a_next[i * A_WIDE + q];          \
            }                                                                               \
        }                                                                                   \
    }                                                                                       \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                          \
        ivec2 p = place_of(lane + i * LANES, B_BY_ROW, B_WIDE, BN);                         \
        if (B_COUNT % LANES == 0 || lane + i * LANES < B_COUNT) {                           \
            [[unroll]] for (int q = 0; q < B_WIDE; q++) {                                   \
                ivec2 at = p + (B_BY_ROW ? ivec2(0, q) : ivec2(q, 0));                      \
                tiles[B_TILE + at.y * B_ROW + at.x / 4][at.x % 4] = b_next[i * B_WIDE + q]; \
            }                                                                               \
        }                                                                                   \
    }

// Without UNROLL a loop: compilers that load all of an unrolled k-tile at once run out of registers.
#define MULTIPLY_AT(ki)                                                                                        \
    {                                                                                                          \
        REAL4 v[TN4];                                                                                          \
        [[unroll]] for (int j = 0; j < TN4; j++) v[j] = tiles[B_TILE + (ki) * B_ROW + j * LANES_N + lane_col]; \
        [[unroll]] for (int i = 0; i < TM4; i++) {                                                             \
            REAL4 u = tiles[(ki) * A_ROW + i * LANES_M + lane_row];                                            \
            [[unroll]] for (int r = 0; r < 4; r++) {                                                           \
                [[unroll]] for (int j = 0; j < TN4; j++) PARTIAL[(i * 4 + r) * TN4 + j] += u[r] * v[j];        \
            }                                                                                                  \
        }                                                                                                      \
    }
#define MULTIPLY_K_TILE                                                 \
    if (UNROLL) {                                                       \
        [[unroll]] for (int ki = 0; ki < BK; ki++) MULTIPLY_AT(ki)      \
    } else {                                                            \
        [[dont_unroll]] for (int ki = 0; ki < BK; ki++) MULTIPLY_AT(ki) \
    }

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
    BEGIN_F16_SUMS(REAL4, ACCS)
    BEGIN_F16_DEPTH
    REAL a_next[A_LOADS * A_WIDE];
    REAL b_next[B_LOADS * B_WIDE];
    // In the loop the next k-tile is on its way while one is multiplied, and nothing branches: compilers then mix both.
    int steps = (k + BK - 1) / BK;
    LOAD_K_TILE(0)
    STORE_K_TILE
    barrier();
    for (int step = 1; step < steps; step++) {
        LOAD_K_TILE(step)
        MULTIPLY_K_TILE
        COUNT_F16_DEPTH(ACCS)
        barrier();
        STORE_K_TILE
        barrier();
    }
    MULTIPLY_K_TILE
    FLUSH_F16_SUMS(REAL4, vec4, ACCS)

    float col_bias[TN];
    int cols[TN];
    [[unroll]] for (int j = 0; j < TN; j++) {
        cols[j] = block_col + (j / 4 * LANES_N + lane_col) * 4 + j % 4;
        col_bias[j] = bias_at(min(cols[j], n - 1), false);
    }
#ifdef REDUCE
    int batch = group / col_blocks / row_blocks;
    int first_output = (TO_PARTS ? batch * col_blocks + group % col_blocks : batch) * m + block_row;
    [[unroll]] for (int i = 0; i < TM; i++) {
        int row = block_row + (i / 4 * LANES_M + lane_row) * 4 + i % 4;
        int in_m = min(row, m - 1);
        Channel channel = channel_of(in_m);
        [[unroll]] for (int j = 0; j < TN; j++) {
            int in_n = min(cols[j], n - 1);
            int to = origin.z + in_m * y_row + in_n * y_col;
            float added = added_at(to, batch, in_m, in_n);
            float value = finished_with(acc[i * TN4 + j / 4][j % 4], channel, col_bias[j], added);
            acc[i * TN4 + j / 4][j % 4] = value;
#ifdef PRODUCT
            if (row < m && cols[j] < n) STORE(product, to, value);
#endif
        }
    }
    [[unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
        barrier();  // all are done with what the tiles held
        [[unroll]] for (int i = 0; i < TM; i++) {
            float total = nothing(reduction);
            [[unroll]] for (int j = 0; j < TN; j++) {
                float term = term_of(reduction, acc[i * TN4 + j / 4][j % 4]);
                if (cols[j] < n) total = combined(reduction, total, term);
            }
            int at = lane_col * TOTALS_ROW + (i / 4 * LANES_M + lane_row) * 4 + i % 4;
            tiles[at / 4][at % 4] = total;
        }
        barrier();
        for (int row = lane; row < BM; row += LANES) {
            float total = nothing(reduction);
            for (int at = row; at < LANES_N * TOTALS_ROW; at += TOTALS_ROW) {
                total = combined(reduction, total, tiles[at / 4][at % 4]);
            }
            if (block_row + row < m) put(reduction, first_output + row, total, divisor);
        }
    }
#else
    // Four rows at a time: what is added to all of them is on its way before the first goes out.
    [[unroll]] for (int i4 = 0; i4 < TM4; i4++) {
        int first_row = block_row + (i4 * LANES_M + lane_row) * 4;
        vec4 results[4 * TN4];
        [[unroll]] for (int i = 0; i < 4 * TN4; i++) {
            int row = first_row + i / TN4;
            int to = origin.z + row * y_row + cols[i % TN4 * 4] * y_col;
            if (Y_VEC4) {
                bool there = row < m && cols[i % TN4 * 4] < n;
                results[i] = there ? residual4_at(to / 4) : vec4(0.0);
            } else {
                [[unroll]] for (int c = 0; c < 4; c++) {
                    bool there = row < m && cols[i % TN4 * 4 + c] < n;
                    results[i][c] = there ? residual_at(to + c * y_col) : 0.0;
                }
            }
        }
        [[unroll]] for (int i = 0; i < 4 * TN4; i++) {
            int row = first_row + i / TN4;
            int column = i % TN4 * 4;
            Channel channel = channel_of(min(row, m - 1));
            [[unroll]] for (int c = 0; c < 4; c++) {
                float sum = acc[i4 * 4 * TN4 + i][c];
                results[i][c] = finished_with(sum, channel, col_bias[column + c], results[i][c]);
            }
            int to = origin.z + row * y_row + cols[column] * y_col;
            if (Y_VEC4) {
                if (row < m && cols[column] < n) STORE_Y4(y4, to / 4, results[i]);
            } else {
                [[unroll]] for (int c = 0; c < 4; c++) {
                    if (row < m && cols[column + c] < n) STORE_Y(y, to + c * y_col, results[i][c]);
                }
            }
        }
    }
#endif
}
