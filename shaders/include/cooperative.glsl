// Tiles of a product of 16-bit floats by cooperative matrices: a workgroup makes BM x BN sums in f32 from BK-deep
// k-tiles of both operands in shared memory, each of its subgroups SM x SN of them by matrices of MM x MN, MK deep.
// Operands lie in shared memory as they do in their buffers, a along rows or (A_COL) columns, b along columns or
// (B_ROW) rows, so that 8-wide vectors go from one to the other as they are. A line is one vector longer than it needs
// to be: neighbouring lines begin in different banks. One k-tile at a time is in shared memory, the next one in
// registers: two in shared memory were slower by a half on the H200. A workgroup may have TEAMS teams of the subgroups
// that a tile takes (sliced-K): every k-tile is loaded by all of them, each team multiplies its part of the depth, and
// what they have is added up in a fixed order. That halves or quarters the k-tiles that are waited for, where there are
// too few workgroups to hide one's wait behind another's work. Matrices are float16_t, which vkconv/bfloat16.py
// makes bf16 of for calls of that: nothing else may be float16_t. Sizes divide each other, see
// vkconv/ops/kernels/coopmat.py.
//
// Much is macros: arrays that a function takes or returns leave the registers. A kernel defines
//   SLOT_A(index), SLOT_B(index)  the 8-wide slot of shared memory, of each operand's own, for load ``index`` of a k-tile
//   LOAD_K_TILE(step, CHECKED)    loads this lane's vectors of a k-tile; CHECKED: zeros past the end of the sum
//   FINISH_LOADS                  makes the vectors a_next[A_LOADS], b_next[B_LOADS] of what was loaded in pieces; or nothing
// names for the arguments of STORE_ACCUMULATORS, and the arrays a_next and b_next, and uses
//   ACCUMULATOR                   the type of a matrix of f32 sums; ``sums`` are ROWS x COLUMNS of them
//   K_LOOP(steps, ALL_WHOLE)      the sums of all k-tiles; ALL_WHOLE: the last one ends with the sum
//   STORE_ACCUMULATORS(...)       the sums by way of shared memory to the output
// or parts of K_LOOP, in its order: STORE_K_TILE (registers to shared memory), MULTIPLY_K_TILE (shared memory onto
// sums), K_LOOP_STEP (loads a k-tile while the one before is multiplied).
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

// A_COL and B_ROW are 0 or 1, since no length of a shared array should be chosen by a bool (quirk adreno-840-842.19).
// As layouts of a matrix in memory 0 is row-major and 1 column-major.

const int TEAM_SUBGROUPS = BM / SM * (BN / SN);
const int TEAM_DEPTH = BK / TEAMS;
const int LANES = TEAMS * TEAM_SUBGROUPS * SUBGROUP;
const int A_VEC8S = (A_COL * BM + (1 - A_COL) * BK) / 8;  // 8-wide vectors of a line
const int B_VEC8S = (B_ROW * BK + (1 - B_ROW) * BN) / 8;
const int A_LINE = A_VEC8S + 1;
const int B_LINE = B_VEC8S + 1;
const int B_BASE = (A_COL * BK + (1 - A_COL) * BM) * A_LINE;
const int K_TILE_SLOTS = B_BASE + (B_ROW * BN + (1 - B_ROW) * BK) * B_LINE;
const int A_COUNT = BM * BK / 8;
const int B_COUNT = BN * BK / 8;
const int A_LOADS = (A_COUNT + LANES - 1) / LANES;
const int B_LOADS = (B_COUNT + LANES - 1) / LANES;
const int ROWS = SM / MM;
const int COLUMNS = SN / MN;
#ifndef REDUCE
// Sums on their way out, f32: in a turn a subgroup has STAGED matrices of a row of its own in shared memory, whose
// lines are a vec4 or, of an even number, two longer than needed, so that pairs of four neighbouring rows are in
// different banks. A lane stores OUT_VEC neighbours of a row at a time. It has the same columns each time, OUT_STRIPS of
// them, of rows that are OUT_AT_ONCE apart; or, where rows of OUT_VECS leave lanes over (OUT_FLAT), others each time.
const int OUT_WIDTH = STAGED * MN;
const int OUT_LINE = OUT_WIDTH / 4 + 2 - STAGED % 2;
const int OUT_SLOTS = TEAM_SUBGROUPS * MM * OUT_LINE;
const int OUT_VECS = OUT_WIDTH / OUT_VEC;
const int OUT_ACROSS = OUT_VECS < SUBGROUP ? OUT_VECS : SUBGROUP;
const int OUT_UNEVEN = OUT_VEC == 1 ? 0 : SUBGROUP % OUT_ACROSS;
const bool OUT_FLAT = OUT_UNEVEN != 0;
const int OUT_STRIPS = (OUT_VECS + OUT_ACROSS - 1) / OUT_ACROSS;
const int OUT_AT_ONCE = SUBGROUP / OUT_ACROSS;
const int OUT_BATCH = OUT_VEC == 1 ? 4 : 1;  // rows that are stored one after the other
const int OUT_BATCHES = (MM + OUT_AT_ONCE * OUT_BATCH - 1) / (OUT_AT_ONCE * OUT_BATCH);
const int OUT_STORES = OUT_FLAT ? (MM * OUT_VECS + SUBGROUP - 1) / SUBGROUP : OUT_BATCHES * OUT_STRIPS;
const int OUT_PLACES = OUT_FLAT ? OUT_STORES : OUT_STRIPS;
const int OUT_LEFT_OVER = MM % (OUT_AT_ONCE * OUT_BATCH) + OUT_VECS % OUT_ACROSS + SUBGROUP % OUT_ACROSS;

// Row of a matrix, and column of those staged, of store ``e`` of a lane.
int out_row(int e, int lane) {
    return OUT_FLAT ? (e * SUBGROUP + lane) / OUT_VECS : lane / OUT_ACROSS + e / OUT_STRIPS * OUT_BATCH * OUT_AT_ONCE;
}
int out_column(int e, int lane) {
    return (OUT_FLAT ? (e * SUBGROUP + lane) % OUT_VECS : e % OUT_STRIPS * OUT_ACROSS + lane % OUT_ACROSS) * OUT_VEC;
}
#endif
// Matrices of a subgroup that go by way of shared memory at a time when the sums of teams are added up.
const int ADD_LINE = MN / 4 + 1;
const int ADD_ROOM = K_TILE_SLOTS / ((TEAMS == 1 ? 1 : TEAMS / 2) * TEAM_SUBGROUPS * MM * ADD_LINE);
const int ADDED = ADD_ROOM < ROWS * COLUMNS ? ADD_ROOM : ROWS * COLUMNS;

#ifdef REDUCE
shared uvec4 tiles[K_TILE_SLOTS];
#else
const int OUT_SPARE = K_TILE_SLOTS - OUT_SLOTS;  // below 0 where sums on their way out take more
shared uvec4 tiles[K_TILE_SLOTS - (OUT_SPARE & OUT_SPARE >> 31)];
#endif

#define ACCUMULATOR coopmat<float, gl_ScopeSubgroup, MM, MN, gl_MatrixUseAccumulator>

// This subgroup's team, and its number in it. The first team has the sums in the end.
int team() { return TEAMS == 1 ? 0 : int(gl_SubgroupID) / TEAM_SUBGROUPS; }
int in_team() { return TEAMS == 1 ? int(gl_SubgroupID) : int(gl_SubgroupID) % TEAM_SUBGROUPS; }

// First row and column, in the workgroup's tile, of this subgroup.
int first_row() { return in_team() / (BN / SN) * SM; }
int first_column() { return in_team() % (BN / SN) * SN; }

// a_next and b_next, which a lane has loaded of a k-tile, to their slots of shared memory.
#define STORE_K_TILE                                                                            \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                              \
        int index = lane + i * LANES;                                                           \
        if (A_COUNT % LANES == 0 || index < A_COUNT) tiles[SLOT_A(index)] = a_next[i];          \
    }                                                                                           \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                              \
        int index = lane + i * LANES;                                                           \
        if (B_COUNT % LANES == 0 || index < B_COUNT) tiles[B_BASE + SLOT_B(index)] = b_next[i]; \
    }

// All k-tiles, one after the other. Only the last one is CHECKED, and not that where ALL_WHOLE: tests in the loop cost
// a tenth. What is loaded is stored beyond a barrier: else compilers move the loads to the stores, and every k-tile is
// waited for.
#define K_LOOP(steps, ALL_WHOLE)                                                                \
    LOAD_K_TILE(0, !(ALL_WHOLE))                                                                \
    FINISH_LOADS                                                                                \
    STORE_K_TILE                                                                                \
    barrier();                                                                                  \
    for (int step = 1; step < (steps) - ((ALL_WHOLE) ? 0 : 1); step++) K_LOOP_STEP(step, false) \
    if (!(ALL_WHOLE) && (steps) > 1) K_LOOP_STEP((steps) - 1, true)                             \
    MULTIPLY_K_TILE                                                                             \
    barrier();                                                                                  \
    ADD_TEAMS
#define K_LOOP_STEP(step, CHECKED) \
    {                              \
        LOAD_K_TILE(step, CHECKED) \
        MULTIPLY_K_TILE            \
        FINISH_LOADS               \
        barrier();                 \
        STORE_K_TILE               \
        barrier();                 \
    }

// The 8-wide vector i of single elements, given as their bits.
#define PACKED8(bits, i)                                                                        \
    uvec4(bits[(i) * 8] | bits[(i) * 8 + 1] << 16, bits[(i) * 8 + 2] | bits[(i) * 8 + 3] << 16, \
          bits[(i) * 8 + 4] | bits[(i) * 8 + 5] << 16, bits[(i) * 8 + 6] | bits[(i) * 8 + 7] << 16)

// Defines name(at): the 8-wide vector from element ``at`` of an operand of ``count`` elements near its end, past which
// its last one stands: what becomes of those is not stored.
#define LOAD8_NEAR_END(name, operand, count)                                                         \
    uvec4 name(int at) {                                                                             \
        uint bits[8];                                                                                \
        [[unroll]] for (int q = 0; q < 8; q++) bits[q] = BITS_AT(operand, min(at + q, (count) - 1)); \
        return PACKED8(bits, 0);                                                                     \
    }

// The 8-wide vector that lies across two neighbouring ones, from element ``first`` of the lower on.
uvec4 shifted(uvec4 low, uvec4 high, int first) {
    bool by4 = (first & 4) != 0;
    uvec4 a = by4 ? uvec4(low.zw, high.xy) : low;
    uvec4 b = by4 ? uvec4(high.zw, 0u, 0u) : high;
    bool by2 = (first & 2) != 0;
    a = by2 ? uvec4(a.yzw, b.x) : a;
    uint after = by2 ? b.y : b.x;
    return (first & 1) != 0 ? a >> 16 | uvec4(a.yzw, after) << 16 : a;
}

// SLOT_A and SLOT_B of loads that go along the lines.
#define SLOT_BY_LINES_A(index) ((index) / A_VEC8S * A_LINE + (index) % A_VEC8S)
#define SLOT_BY_LINES_B(index) ((index) / B_VEC8S * B_LINE + (index) % B_VEC8S)

// The slot of an element of a k-tile.
int slot_of_a(int row, int depth) { return A_COL == 1 ? depth * A_LINE + row / 8 : row * A_LINE + depth / 8; }
int slot_of_b(int depth, int column) { return B_ROW == 1 ? column * B_LINE + depth / 8 : depth * B_LINE + column / 8; }

// The product of the k-tile in shared memory onto ACCUMULATOR sums[ROWS * COLUMNS].
#define MULTIPLY_K_TILE                                                                                     \
    [[unroll]] for (int of_depth = 0; of_depth < TEAM_DEPTH; of_depth += MK) {                              \
        int depth = team() * TEAM_DEPTH + of_depth;                                                         \
        coopmat<float16_t, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB> of_b[COLUMNS];                          \
        [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                                      \
            coopMatLoad(of_b[j], tiles, B_BASE + slot_of_b(depth, first_column() + j * MN), B_LINE, B_ROW); \
        }                                                                                                   \
        [[unroll]] for (int i = 0; i < ROWS; i++) {                                                         \
            coopmat<float16_t, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA> of_a;                               \
            coopMatLoad(of_a, tiles, slot_of_a(first_row() + i * MM, depth), A_LINE, A_COL);                \
            [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                                  \
                sums[i * COLUMNS + j] = coopMatMulAdd(of_a, of_b[j], sums[i * COLUMNS + j]);                \
            }                                                                                               \
        }                                                                                                   \
    }

// The sums of all teams onto those of the first: half of the teams hand theirs to the other half, until one is left.
#define ADD_TEAMS                                                                                                   \
    [[dont_unroll]] for (int half_teams = TEAMS / 2; half_teams > 0; half_teams /= 2) {                             \
        int handed = (team() % half_teams * TEAM_SUBGROUPS + in_team()) * ADDED * MM * ADD_LINE;                    \
        [[dont_unroll]] for (int turn = 0; turn < (ROWS * COLUMNS + ADDED - 1) / ADDED; turn++) {                   \
            if (team() / half_teams == 1) {                                                                         \
                [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) {                                               \
                    if (i / ADDED == turn) {                                                                        \
                        coopMatStore(sums[i], tiles, handed + i % ADDED * MM * ADD_LINE, ADD_LINE,                  \
                                     gl_CooperativeMatrixLayoutRowMajor);                                           \
                    }                                                                                               \
                }                                                                                                   \
            }                                                                                                       \
            barrier();                                                                                              \
            if (team() < half_teams) {                                                                              \
                [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) {                                               \
                    if (i / ADDED == turn) {                                                                        \
                        ACCUMULATOR other;                                                                          \
                        coopMatLoad(other, tiles, handed + i % ADDED * MM * ADD_LINE, ADD_LINE,                     \
                                    gl_CooperativeMatrixLayoutRowMajor);                                            \
                        sums[i] += other;                                                                           \
                    }                                                                                               \
                }                                                                                                   \
            }                                                                                                       \
            barrier();                                                                                              \
        }                                                                                                           \
    }

// Of the first team as many, of the others none.
int first_team(int count) { return team() == 0 ? count : 0; }

// One matrix of a subgroup to shared memory, ADD_LINE vec4 a line. Where a barrier of the workgroup follows, all
// subgroups take all turns: lavapipe takes a barrier of a subgroup for such a one.
#define STAGE_MATRIX(index, at)                                                             \
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) {                                   \
        if (i == (index)) {                                                                 \
            coopMatStore(sums[i], tiles, at, ADD_LINE, gl_CooperativeMatrixLayoutRowMajor); \
        }                                                                                   \
    }

#ifndef REDUCE
// Every sum of a subgroup of the first team to the output, once the whole workgroup is done with the k-tiles, by way
// of shared memory. A kernel defines OUT_VEC, how many neighbours of a row a lane stores at a time, before it includes
// this, and
//   PLACE, PLACE_OF(row, column)  the type of what has to be known of where a lane stores, and what it is of a row and
//                                 a column of the workgroup's tile
//   ADDED, LOAD_ADDED(place, on)  the type of what the epilogue of OUT_VEC outputs loads, bias and residual, ``on``
//                                 rows behind that place, and the load, which is issued a turn ahead to hide its latency
//   STORE_OUTPUTS(place, on, left, low, high, added)  stores them, of 8 or 4 neighbours; or, of OUT_BATCH rows
//                                 OUT_AT_ONCE apart, low[q] where ``left`` rows have it
// The matrices of a turn are picked by branches where compilers keep the loop: what an array of matrices is indexed by
// must be constant, or it leaves the registers. All sums of a turn are read before one of its outputs is stored: a store
// holds up the reads behind it.
#define OUT_ON(turn, e) ((turn) * MM + (OUT_FLAT ? 0 : (e) / OUT_STRIPS * OUT_BATCH * OUT_AT_ONCE))
#define OUT_PLACE(e) places[OUT_FLAT ? (e) : (e) % OUT_STRIPS]
#define STORE_ACCUMULATORS(PLACE, PLACE_OF, ADDED, LOAD_ADDED, STORE_OUTPUTS)                                   \
    int of_subgroup = int(gl_SubgroupInvocationID);                                                             \
    int scratch = in_team() * MM * OUT_LINE;                                                                    \
    [[dont_unroll]] for (int part = 0; part < first_team(COLUMNS / STAGED); part++) {                           \
        PLACE places[OUT_PLACES];                                                                               \
        ADDED ahead[OUT_STORES];                                                                                \
        [[unroll]] for (int e = 0; e < OUT_PLACES; e++) {                                                       \
            int column = first_column() + part * OUT_WIDTH + out_column(e, of_subgroup);                        \
            places[e] = PLACE_OF(first_row() + out_row(OUT_FLAT ? e : 0, of_subgroup), column);                 \
        }                                                                                                       \
        [[unroll]] for (int e = 0; e < OUT_STORES; e++) ahead[e] = LOAD_ADDED(OUT_PLACE(e), OUT_ON(0, e));      \
        [[unroll]] for (int turn = 0; turn < ROWS; turn++) {                                                    \
            ADDED added[OUT_STORES];                                                                            \
            vec4 low[OUT_STORES];                                                                               \
            vec4 high[OUT_STORES];                                                                              \
            [[unroll]] for (int e = 0; e < OUT_STORES; e++) {                                                   \
                added[e] = ahead[e];                                                                            \
                ahead[e] = LOAD_ADDED(OUT_PLACE(e), OUT_ON(min(turn + 1, ROWS - 1), e));                        \
            }                                                                                                   \
            [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) {                                               \
                if (i / COLUMNS == turn && i % COLUMNS / STAGED == part) {                                      \
                    coopMatStore(sums[i], tiles, scratch + i % COLUMNS % STAGED * (MN / 4), OUT_LINE,           \
                                 gl_CooperativeMatrixLayoutRowMajor);                                           \
                }                                                                                               \
            }                                                                                                   \
            subgroupBarrier();                                                                                  \
            [[unroll]] for (int e = 0; e < OUT_STORES; e++) {                                                   \
                int row = min(out_row(e, of_subgroup), MM - 1);                                                 \
                int at = scratch + row * OUT_LINE + out_column(e, of_subgroup) / 4;                             \
                if (OUT_VEC == 1) {                                                                             \
                    [[unroll]] for (int q = 0; q < 4; q++) {                                                    \
                        int other = min(q * OUT_AT_ONCE, MM - 1 - row) * OUT_LINE;                              \
                        low[e][q] = uintBitsToFloat(tiles[at + other][out_column(e, of_subgroup) % 4]);         \
                    }                                                                                           \
                } else {                                                                                        \
                    low[e] = uintBitsToFloat(tiles[at]);                                                        \
                    high[e] = uintBitsToFloat(tiles[OUT_VEC == 8 ? at + 1 : at]);                               \
                }                                                                                               \
            }                                                                                                   \
            [[unroll]] for (int e = 0; e < OUT_STORES; e++) {                                                   \
                int left = MM - out_row(e, of_subgroup);                                                        \
                bool is_lane = OUT_FLAT || of_subgroup / OUT_ACROSS < OUT_AT_ONCE;                              \
                if (OUT_LEFT_OVER == 0 || left > 0 && is_lane && out_column(e, of_subgroup) < OUT_WIDTH) {      \
                    STORE_OUTPUTS(OUT_PLACE(e), OUT_ON(turn, e), left, low[e], high[e], added[e])               \
                }                                                                                               \
            }                                                                                                   \
            subgroupBarrier();                                                                                  \
        }                                                                                                       \
    }
#endif

#include "rounded.glsl"
