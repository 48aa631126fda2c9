#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "matmul.glsl"
#ifndef REDUCE
const int OUT_VEC = Y_WIDE ? 8 : 1;
#endif
#include "cooperative.glsl"

// A workgroup makes BM x BN outputs (cooperative.glsl). Where the lines of an operand are whole vectors of 8 (A_WIDE,
// B_WIDE) a load is one of 16 bytes; else two, of the words that eight neighbours lie across (A_RUNS, B_RUNS), but
// eight of one element where k-tiles are tested for their end. With REDUCE the results are reduced along their columns
// (reduced.glsl), and what the tile comes to is stored: [batch][tile along the columns][row]; PRODUCT stores the results
// too.

#define SLOT_A SLOT_BY_LINES_A
#define SLOT_B SLOT_BY_LINES_B
// What is loaded as two words is put together only when it is there.
#define FINISH_LOADS                                                                                                   \
    if (A_RUNS) {                                                                                                      \
        [[unroll]] for (int i = 0; i < A_LOADS; i++) a_next[i] = shifted(a_next[i], a_after[i], a_first[i * A_ALIKE]); \
    }                                                                                                                  \
    if (B_RUNS) {                                                                                                      \
        [[unroll]] for (int i = 0; i < B_LOADS; i++) b_next[i] = shifted(b_next[i], b_after[i], b_first[i * B_ALIKE]); \
    }

// Where an 8-wide vector of a k-tile begins: x is the row or column, y the depth.
ivec2 place_in(int index, int vec8s, bool along_depth) {
    ivec2 place = ivec2(index / vec8s, index % vec8s * 8);
    return along_depth ? place : place.yx;
}

// Defines name(at, next, valid): element ``at`` of an operand and those ``next`` apart, the first ``valid`` of eight.
#define STRIDED8(name, operand)                                                   \
    uvec4 name(int at, int next, int valid) {                                     \
        uvec4 vec8 = uvec4(0u);                                                   \
        [[unroll]] for (int q = 0; q < 8; q++) {                                  \
            if (q < valid) insert_bits(vec8, q, BITS_AT(operand, at + q * next)); \
        }                                                                         \
        return vec8;                                                              \
    }
STRIDED8(strided8_of_a, a)
STRIDED8(strided8_of_b, b)
LOAD8_NEAR_END(near_end_of_a, a, int(a.length()))
LOAD8_NEAR_END(near_end_of_b, b, int(b.length()))

// A load of words lies where the k-tile before had it, and as far on as a k-tile is deep, whole words; what it reads
// beyond the rows or columns is of sums that are not stored, so the last ones do. A run begins at an element of its word.
#define BEGIN_K_TILES                                                                              \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                 \
        ivec2 p = place_in(lane + i * TEAM_LANES, A_VEC8S, A_COL == 0) + ivec2(block_row, 0);      \
        a_at[i] = origin.x + min(p.x, A_COL == 0 || A_RUNS ? m - 1 : m - 8) * a_row + p.y * a_col; \
        a_begins[i] = a_at[i] & 7;                                                                 \
        a_at[i] /= 8;                                                                              \
    }                                                                                              \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                 \
        ivec2 p = place_in(lane + i * TEAM_LANES, B_VEC8S, B_ROW == 1) + ivec2(block_col, 0);      \
        b_at[i] = origin.y + min(p.x, B_ROW == 1 || B_RUNS ? n - 1 : n - 8) * b_col + p.y * b_row; \
        b_begins[i] = b_at[i] & 7;                                                                 \
        b_at[i] /= 8;                                                                              \
    }

#define LOAD_K_TILE(step, CHECKED)                                                                                  \
    int k_tile = first_k_tile + (step);                                                                             \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                                  \
        ivec2 p = place_in(lane + i * TEAM_LANES, A_VEC8S, A_COL == 0) + ivec2(block_row, k_tile * BK);             \
        if (A_COUNT % TEAM_LANES == 0 || lane + i * TEAM_LANES < A_COUNT) {                                         \
            bool ok = !(CHECKED) || p.y < k;                                                                        \
            if (A_WIDE) {                                                                                           \
                a_next[i] = ok ? a8[a_at[i] + k_tile * a_step] : uvec4(0u);                                         \
            } else if (A_RUNS && !(CHECKED)) {                                                                      \
                LOAD_ACROSS(A_ENDS_WHOLE, a8, near_end_of_a, a_at[i] + k_tile * a_step, a_next[i], a_after[i])      \
                a_first[i] = a_begins[i];                                                                           \
            } else {                                                                                                \
                int valid = !ok ? 0 : A_COL == 0 ? (p.x < m ? k - p.y : 0) : m - p.x;                               \
                a_next[i] = strided8_of_a(origin.x + p.x * a_row + p.y * a_col, A_COL == 0 ? a_col : a_row, valid); \
                a_first[i] = 0;                                                                                     \
            }                                                                                                       \
        }                                                                                                           \
    }                                                                                                               \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                                  \
        ivec2 p = place_in(lane + i * TEAM_LANES, B_VEC8S, B_ROW == 1) + ivec2(block_col, k_tile * BK);             \
        if (B_COUNT % TEAM_LANES == 0 || lane + i * TEAM_LANES < B_COUNT) {                                         \
            bool ok = !(CHECKED) || p.y < k;                                                                        \
            if (B_WIDE) {                                                                                           \
                b_next[i] = ok ? b8[b_at[i] + k_tile * b_step] : uvec4(0u);                                         \
            } else if (B_RUNS && !(CHECKED)) {                                                                      \
                LOAD_ACROSS(B_ENDS_WHOLE, b8, near_end_of_b, b_at[i] + k_tile * b_step, b_next[i], b_after[i])      \
                b_first[i] = b_begins[i];                                                                           \
            } else {                                                                                                \
                int valid = !ok ? 0 : B_ROW == 1 ? (p.x < n ? k - p.y : 0) : n - p.x;                               \
                b_next[i] = strided8_of_b(origin.y + p.x * b_col + p.y * b_row, B_ROW == 1 ? b_row : b_col, valid); \
                b_first[i] = 0;                                                                                     \
            }                                                                                                       \
        }                                                                                                           \
    }

#ifdef REDUCE
#include "addends.glsl"
#include "reduced.glsl"
// Lanes of a subgroup that share a row of a matrix on its way out, and of all subgroups a row of the tile.
const int ROW_LANES = SUBGROUP < MM ? 1 : SUBGROUP / MM;
const int ROW_PARTS = BN / SN * ROW_LANES;

// What each of them comes to, of each reduction.
shared float totals[REDUCTIONS * ROW_PARTS * BM];

int total_at(int reduction, int part, int row) { return (reduction * ROW_PARTS + part) * BM + row; }

// The sums of a subgroup to totals: matrices go by way of shared memory as in STORE_ACCUMULATORS, and each lane combines
// what it finishes of a row of them with what it had. No other lane has that place of totals.
#define REDUCE_ACCUMULATORS                                                                                   \
    int scratch = int(gl_SubgroupID) * MM * ADD_LINE;                                                         \
    int of_subgroup = int(gl_SubgroupInvocationID);                                                           \
    int of_row = of_subgroup / MM;                                                                            \
    int part = in_team() % (BN / SN) * ROW_LANES + of_row;                                                    \
    [[unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {                                 \
        [[dont_unroll]] for (int i = 0; i < first_team(ROWS); i++) {                                          \
            for (int r = of_subgroup % MM; r < MM; r += SUBGROUP) {                                           \
                totals[total_at(reduction, part, first_row() + i * MM + r)] = nothing(reduction);             \
            }                                                                                                 \
        }                                                                                                     \
    }                                                                                                         \
    [[dont_unroll]] for (int turn = 0; turn < ROWS * COLUMNS; turn++) {                                       \
        if (team() == 0) STAGE_MATRIX(turn, scratch)                                                          \
        subgroupBarrier();                                                                                    \
        int out_column = block_col + first_column() + turn % COLUMNS * MN;                                    \
        for (int r = of_subgroup % MM; r < first_team(MM); r += SUBGROUP) {                                   \
            reduce_row(batch, origin.z, block_row, first_row() + turn / COLUMNS * MM + r, out_column, of_row, \
                       scratch + r * ADD_LINE, part);                                                         \
        }                                                                                                     \
        subgroupBarrier();                                                                                    \
    }

// Row ``row`` of the tile, the columns from ``first`` on that a subgroup has in shared memory at ``line``.
void reduce_row(int batch, int origin, int block_row, int row, int first, int of_row, int line, int part) {
    int in_m = min(block_row + row, m - 1);
    Channel channel = channel_of(in_m);
    [[unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
        float total = totals[total_at(reduction, part, row)];
        for (int c = of_row; c < MN; c += ROW_LANES) {
            int in_n = min(first + c, n - 1);
            int to = origin + in_m * y_row + in_n * y_col;
            float sum = uintBitsToFloat(tiles[line + c / 4][c % 4]);
            float value = finished_with(sum, channel, bias_at(in_n, false), added_at(to, batch, in_m, in_n));
            if (first + c < n) total = combined(reduction, total, term_of(reduction, value));
#ifdef PRODUCT
            if (reduction == 0 && first + c < n && block_row + row < m) STORE(product, to, value);
#endif
        }
        totals[total_at(reduction, part, row)] = total;
    }
}
#else

// What the epilogue of eight neighbours of a row loads, where rows of y are whole vectors of 8; else nothing is.
struct Added {
    Channel channel;
    uvec4 bias, residual;
};

Added added_to(int origin, int row, int col) {
    if (!Y_WIDE) return Added(Channel(0.0, 0.0), uvec4(0u), uvec4(0u));
    int in_m = min(row, m - 1);
    int in_n = min(col, n - 8);
    uvec4 bias = HAS_BIAS && !BIAS_BY_ROW ? per_channel8[in_n / 8] : uvec4(0u);
#ifdef RESIDUAL
    uvec4 residual = residual8[(origin + in_m * y_row + in_n) / 8];
#else
    uvec4 residual = uvec4(0u);
#endif
    return Added(channel_of(in_m), bias, residual);
}

vec4 finish4(vec4 sums, Channel channel, vec4 bias, vec4 residual) {
    return vec4(finished_with(sums[0], channel, bias[0], residual[0]), finished_with(sums[1], channel, bias[1], residual[1]),
                finished_with(sums[2], channel, bias[2], residual[2]), finished_with(sums[3], channel, bias[3], residual[3]));
}

void store8(int origin, int row, int col, vec4 low, vec4 high, Added added) {
    if (row >= m || col >= n) return;
    vec4 bias_low = HAS_BIAS && !BIAS_BY_ROW ? beta * from_bits4(added.bias.xy) : vec4(0.0);
    vec4 bias_high = HAS_BIAS && !BIAS_BY_ROW ? beta * from_bits4(added.bias.zw) : vec4(0.0);
    y8[(origin + row * y_row + col) / 8] = rounded8(finish4(low, added.channel, bias_low, from_bits4(added.residual.xy)),
                                                    finish4(high, added.channel, bias_high, from_bits4(added.residual.zw)));
}

void store1(int origin, int row, int col, float sum) {
    if (row < m && col < n) store(origin, row, col, sum, channel_of(row), bias_at(col, false));
}

#define PLACE_OF(row, col) ivec2(block_row + (row), block_col + (col))
#define LOAD_ADDED(place, on) added_to(origin.z, place.x + (on), place.y)
#define STORE_OUTPUTS(place, on, left, low, high, added)                            \
    if (Y_WIDE) {                                                                   \
        store8(origin.z, place.x + (on), place.y, low, high, added);                \
    } else {                                                                        \
        [[unroll]] for (int q = 0; q < 4; q++) {                                    \
            int row = place.x + (on) + q * OUT_AT_ONCE;                             \
            if (q * OUT_AT_ONCE < (left)) store1(origin.z, row, place.y, (low)[q]); \
        }                                                                           \
    }
#endif

void main() {
    int lane = lane_of_team();
    int col_blocks = (n + BN - 1) / BN;
    int row_blocks = (m + BM - 1) / BM;
    int group = int(flat_group());
    if (group >= batches() * row_blocks * col_blocks) return;
    int block_col = group % col_blocks * BN;
    int block_row = group / col_blocks % row_blocks * BM;
    ivec3 origin = batch_origin(group / col_blocks / row_blocks);

    ACCUMULATOR sums[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) sums[i] = ACCUMULATOR(0.0);
    uvec4 a_next[A_LOADS];
    uvec4 b_next[B_LOADS];
    int a_at[A_LOADS];
    int b_at[B_LOADS];
    uvec4 a_after[A_LOADS];
    uvec4 b_after[B_LOADS];
    int a_first[A_LOADS];
    int a_begins[A_LOADS];
    int b_first[B_LOADS];
    int b_begins[B_LOADS];
    int a_step = BK * a_col / 8;
    int b_step = BK * b_row / 8;
    BEGIN_K_TILES
    int k_tiles = (k + BK - 1) / BK;
    int first_k_tile = first_of_team(team(), k_tiles);
    K_LOOP(k_tiles, WHOLE)
#ifdef REDUCE
    int batch = group / col_blocks / row_blocks;
    ADD_TEAMS
    REDUCE_ACCUMULATORS
    barrier();
    int first_output = (TO_PARTS ? batch * col_blocks + group % col_blocks : batch) * m + block_row;
    [[unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
        for (int row = int(gl_LocalInvocationID.x); row < BM; row += LANES) {
            float total = nothing(reduction);
            for (int i = 0; i < ROW_PARTS; i++) total = combined(reduction, total, totals[total_at(reduction, i, row)]);
            if (block_row + row < m) put(reduction, first_output + row, total, divisor);
        }
    }
#else
    STORE_ACCUMULATORS(ivec2, PLACE_OF, Added, LOAD_ADDED, STORE_OUTPUTS)
#endif
}
