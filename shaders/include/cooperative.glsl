// Tiles of a product of 16-bit floats by cooperative matrices: a workgroup makes BM x BN sums in f32 from BK-deep
// k-tiles of both operands in shared memory, each of its subgroups SM x SN of them by matrices of MM x MN, MK deep.
// Operands lie in shared memory as they do in their buffers, a along rows or (A_COL) columns, b along columns or
// (B_ROW) rows, so that 8-wide vectors go from one to the other as they are. A line is one vector longer than it needs
// to be: neighbouring lines begin in different banks. One k-tile at a time is in shared memory, the next one in
// registers: two in shared memory were slower by a half on the H200. A workgroup may have TEAMS teams, each a subgroup
// that makes the whole tile of its part of the sum (sliced-K), from k-tiles of its own, without a barrier of the
// workgroup; all of them add up, in a fixed order, what they have, and store it. Where there are too few workgroups to
// hide one's waits behind another's work, a unit has the loads of all its teams in flight, and waits for few k-tiles.
// Matrices are float16_t, which vkconv/bfloat16.py makes bf16 of for calls of that: nothing else may be float16_t.
// Sizes divide each other, see vkconv/ops/kernels/coopmat.py.
//
// Much is macros: arrays that a function takes or returns leave the registers. A kernel defines
//   SLOT_A(index), SLOT_B(index)  the 8-wide slot of shared memory, of each operand's own, for load ``index`` of a k-tile
//   LOAD_K_TILE(step, CHECKED)    loads this lane's vectors of a k-tile; CHECKED: zeros past the end of the sum
//   FINISH_LOADS                  makes the vectors a_next[A_LOADS], b_next[B_LOADS] of what was loaded in pieces; or nothing
// names for the arguments of STORE_ACCUMULATORS, and the arrays a_next and b_next, and uses
//   ACCUMULATOR                   the type of a matrix of f32 sums; ``sums`` are ROWS x COLUMNS of them
//   lane                          of the lanes of a team, lane_of_team()
//   K_LOOP(steps, ALL_WHOLE)      the sums of all k-tiles, of which a team has those from first_of_team(team(), steps)
//                                 on; ALL_WHOLE: the last one ends with the sum
//   STORE_ACCUMULATORS(...)       the sums of all teams by way of shared memory to the output
//   ADD_TEAMS                     those of all teams onto the first one's, in registers
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
const int TEAM_LANES = TEAM_SUBGROUPS * SUBGROUP;
const int LANES = TEAMS * TEAM_LANES;
const int A_VEC8S = (A_COL * BM + (1 - A_COL) * BK) / 8;  // 8-wide vectors of a line
const int B_VEC8S = (B_ROW * BK + (1 - B_ROW) * BN) / 8;
const int A_LINE = A_VEC8S + 1;
const int B_LINE = B_VEC8S + 1;
const int B_BASE = (A_COL * BK + (1 - A_COL) * BM) * A_LINE;
const int K_TILE_SLOTS = B_BASE + (B_ROW * BN + (1 - B_ROW) * BK) * B_LINE;
const int A_COUNT = BM * BK / 8;
const int B_COUNT = BN * BK / 8;
const int A_LOADS = (A_COUNT + TEAM_LANES - 1) / TEAM_LANES;
const int B_LOADS = (B_COUNT + TEAM_LANES - 1) / TEAM_LANES;
// Loads of a lane that are lines apart by whole eights begin in their words alike, at the first one's element: the step of
// an index of those.
const int A_ALIKE = TEAM_LANES % (8 * A_VEC8S) == 0 ? 0 : 1;
const int B_ALIKE = TEAM_LANES % (8 * B_VEC8S) == 0 ? 0 : 1;
const int ROWS = SM / MM;
const int COLUMNS = SN / MN;
#ifndef REDUCE
// Sums on their way out, f32: in a turn a subgroup has STAGED_ROWS x STAGED matrices of its own in shared memory, whose
// lines are a vec4 or, of an even number, two longer than needed, so that pairs of four neighbouring rows are in
// different banks. OUT_LANES, those of the subgroup or of all teams, store OUT_VEC neighbours of a row each at a time. A
// lane has the same columns each time, OUT_STRIPS of them, of rows that are OUT_AT_ONCE apart; or, where rows of OUT_VECS
// leave lanes over (OUT_FLAT), others each time.
const int OUT_WIDTH = STAGED * MN;
const int OUT_LINE = OUT_WIDTH / 4 + 2 - STAGED % 2;
const int OUT_HEIGHT = STAGED_ROWS * MM;
const int OUT_STAGE = OUT_HEIGHT * OUT_LINE;
const int OUT_SLOTS = TEAMS * TEAM_SUBGROUPS * OUT_STAGE;
const int OUT_VECS = OUT_WIDTH / OUT_VEC;
const int OUT_LANES = TEAMS == 1 ? SUBGROUP : LANES;
const int OUT_ACROSS = OUT_VECS < OUT_LANES ? OUT_VECS : OUT_LANES;
const int OUT_UNEVEN = OUT_VEC == 1 ? 0 : OUT_LANES % OUT_ACROSS;
const bool OUT_FLAT = OUT_UNEVEN != 0;
const int OUT_STRIPS = (OUT_VECS + OUT_ACROSS - 1) / OUT_ACROSS;
const int OUT_AT_ONCE = OUT_LANES / OUT_ACROSS;
const int OUT_BATCH = OUT_VEC == 1 ? 4 : 1;  // rows that are stored one after the other
const int OUT_BATCHES = (OUT_HEIGHT + OUT_AT_ONCE * OUT_BATCH - 1) / (OUT_AT_ONCE * OUT_BATCH);
const int OUT_STORES = OUT_FLAT ? (OUT_HEIGHT * OUT_VECS + OUT_LANES - 1) / OUT_LANES : OUT_BATCHES * OUT_STRIPS;
const int OUT_PLACES = OUT_FLAT ? OUT_STORES : OUT_STRIPS;
const int OUT_LEFT_OVER = OUT_HEIGHT % (OUT_AT_ONCE * OUT_BATCH) + OUT_VECS % OUT_ACROSS + OUT_LANES % OUT_ACROSS;

// Row of a matrix, and column of those staged, of store ``e`` of a lane.
int out_row(int e, int lane) {
    return OUT_FLAT ? (e * OUT_LANES + lane) / OUT_VECS : lane / OUT_ACROSS + e / OUT_STRIPS * OUT_BATCH * OUT_AT_ONCE;
}
int out_column(int e, int lane) {
    return (OUT_FLAT ? (e * OUT_LANES + lane) % OUT_VECS : e % OUT_STRIPS * OUT_ACROSS + lane % OUT_ACROSS) * OUT_VEC;
}
#endif
// Matrices of a subgroup that go by way of shared memory at a time when the sums of teams are added up.
const int ADD_LINE = MN / 4 + 1;
const int ADD_ROOM = TEAMS * K_TILE_SLOTS / ((TEAMS == 1 ? 1 : TEAMS / 2) * TEAM_SUBGROUPS * MM * ADD_LINE);
const int ADDED = ADD_ROOM < ROWS * COLUMNS ? ADD_ROOM : ROWS * COLUMNS;

#ifdef REDUCE
shared uvec4 tiles[TEAMS * K_TILE_SLOTS];
#else
const int OUT_SPARE = TEAMS * K_TILE_SLOTS - OUT_SLOTS;  // below 0 where sums on their way out take more
shared uvec4 tiles[TEAMS * K_TILE_SLOTS - (OUT_SPARE & OUT_SPARE >> 31)];
#endif

#define ACCUMULATOR coopmat<float, gl_ScopeSubgroup, MM, MN, gl_MatrixUseAccumulator>

// This subgroup's team, and its number in it; of several teams each is one subgroup.
int team() { return TEAMS == 1 ? 0 : int(gl_SubgroupID); }
int in_team() { return TEAMS == 1 ? int(gl_SubgroupID) : 0; }
int lane_of_team() { return int(TEAMS == 1 ? gl_LocalInvocationID.x : gl_SubgroupInvocationID); }

// The first of ``steps`` k-tiles that a team has.
int first_of_team(int number, int steps) { return TEAMS == 1 ? number * steps : number * steps / TEAMS; }

// Where its k-tile is in shared memory.
int own_k_tile() { return team() * K_TILE_SLOTS; }

#define TEAM_BARRIER       \
    if (TEAMS == 1) {      \
        barrier();         \
    } else {               \
        subgroupBarrier(); \
    }

// First row and column, in the workgroup's tile, of this subgroup.
int first_row() { return in_team() / (BN / SN) * SM; }
int first_column() { return in_team() % (BN / SN) * SN; }

// a_next and b_next, which a lane has loaded of a k-tile, to their slots of shared memory.
#define STORE_K_TILE                                                                                       \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                         \
        int index = lane + i * TEAM_LANES;                                                                 \
        if (A_COUNT % TEAM_LANES == 0 || index < A_COUNT) tiles[own_k_tile() + SLOT_A(index)] = a_next[i]; \
    }                                                                                                      \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                         \
        int index = lane + i * TEAM_LANES;                                                                 \
        int to = own_k_tile() + B_BASE + SLOT_B(index);                                                    \
        if (B_COUNT % TEAM_LANES == 0 || index < B_COUNT) tiles[to] = b_next[i];                           \
    }

// All k-tiles of a team, one after the other. Only the last one is CHECKED, and not that where ALL_WHOLE: tests in the
// loop cost a tenth. What is loaded is stored beyond a barrier: else compilers move the loads to the stores, and every
// k-tile is waited for. All teams take the same turns, since lavapipe takes a barrier of a subgroup for one of the
// workgroup: the last turn, which some have no k-tile for, is one of its own.
#define K_LOOP(steps, ALL_WHOLE)                                                                          \
    int least_steps = TEAMS == 1 ? (steps) : (steps) / TEAMS;                                             \
    int own_steps = first_of_team(team() + 1, steps) - first_of_team(team(), steps);                      \
    bool has_k_tile = TEAMS == 1 || own_steps > 0;                                                        \
    if (has_k_tile) {                                                                                     \
        LOAD_K_TILE(0, !(ALL_WHOLE))                                                                      \
        FINISH_LOADS                                                                                      \
        STORE_K_TILE                                                                                      \
    }                                                                                                     \
    TEAM_BARRIER                                                                                          \
    for (int step = 1; step < least_steps - ((ALL_WHOLE) ? 0 : 1); step++) K_LOOP_STEP(step, false, true) \
    if (!(ALL_WHOLE) && least_steps > 1) K_LOOP_STEP(least_steps - 1, true, true)                         \
    if (TEAMS > 1 && least_steps > 0 && (steps) % TEAMS > 0) {                                            \
        has_k_tile = own_steps > least_steps;                                                             \
        K_LOOP_STEP(least_steps, !(ALL_WHOLE), has_k_tile)                                                \
    }                                                                                                     \
    if (has_k_tile) MULTIPLY_K_TILE                                                                       \
    barrier();
#define K_LOOP_STEP(step, CHECKED, HAS_ONE) \
    {                                       \
        if (HAS_ONE) {                      \
            LOAD_K_TILE(step, CHECKED)      \
        }                                   \
        MULTIPLY_K_TILE                     \
        if (HAS_ONE) {                      \
            FINISH_LOADS                    \
        }                                   \
        TEAM_BARRIER                        \
        if (HAS_ONE) {                      \
            STORE_K_TILE                    \
        }                                   \
        TEAM_BARRIER                        \
    }

// The 8-wide vector i of single elements, given as their bits.
#define PACKED8(bits, i)                                                                        \
    uvec4(bits[(i) * 8] | bits[(i) * 8 + 1] << 16, bits[(i) * 8 + 2] | bits[(i) * 8 + 3] << 16, \
          bits[(i) * 8 + 4] | bits[(i) * 8 + 5] << 16, bits[(i) * 8 + 6] | bits[(i) * 8 + 7] << 16)

// Defines name(word): 8-wide word ``word`` of an operand of ``count`` elements, past which its last one stands: what
// becomes of those is not stored.
#define LOAD8_NEAR_END(name, operand, count)                                                               \
    uvec4 name(int word) {                                                                                 \
        uint bits[8];                                                                                      \
        [[unroll]] for (int q = 0; q < 8; q++) bits[q] = BITS_AT(operand, min(word * 8 + q, (count) - 1)); \
        return PACKED8(bits, 0);                                                                           \
    }

// The two words, from word ``at`` on, that a vector lies across. ENDS_WHOLE: the operand ends with a word; else that is
// read by elements. A branch in the loop costs an eighth of its time.
#define LOAD_ACROSS(ENDS_WHOLE, words, near_end, at, low, high)                      \
    {                                                                                \
        int from = at;                                                               \
        if (ENDS_WHOLE || from + 1 < words.length()) {                               \
            low = words[from];                                                       \
            high = words[ENDS_WHOLE ? min(from + 1, words.length() - 1) : from + 1]; \
        } else {                                                                     \
            low = near_end(from);                                                    \
            high = near_end(from + 1);                                               \
        }                                                                            \
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
#define MULTIPLY_K_TILE                                                                                   \
    {                                                                                                     \
        int of_own = own_k_tile();                                                                        \
        [[unroll]] for (int depth = 0; depth < BK; depth += MK) {                                         \
            coopmat<float16_t, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB> of_b[COLUMNS];                    \
            [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                                \
                int at = of_own + B_BASE + slot_of_b(depth, first_column() + j * MN);                     \
                coopMatLoad(of_b[j], tiles, at, B_LINE, B_ROW);                                           \
            }                                                                                             \
            [[unroll]] for (int i = 0; i < ROWS; i++) {                                                   \
                coopmat<float16_t, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA> of_a;                         \
                coopMatLoad(of_a, tiles, of_own + slot_of_a(first_row() + i * MM, depth), A_LINE, A_COL); \
                [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                            \
                    sums[i * COLUMNS + j] = coopMatMulAdd(of_a, of_b[j], sums[i * COLUMNS + j]);          \
                }                                                                                         \
            }                                                                                             \
        }                                                                                                 \
    }

// The sums of all teams onto those of the first: half of the teams hand theirs to the other half, until one is left.
#define ADD_TEAMS                                                                                  \
    [[dont_unroll]] for (int half_teams = TEAMS / 2; half_teams > 0; half_teams /= 2) {            \
        int handed = team() % half_teams * ADDED * MM * ADD_LINE;                                  \
        [[dont_unroll]] for (int turn = 0; turn < (ROWS * COLUMNS + ADDED - 1) / ADDED; turn++) {  \
            if (team() / half_teams == 1) {                                                        \
                [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) {                              \
                    if (i / ADDED == turn) {                                                       \
                        coopMatStore(sums[i], tiles, handed + i % ADDED * MM * ADD_LINE, ADD_LINE, \
                                     gl_CooperativeMatrixLayoutRowMajor);                          \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            barrier();                                                                             \
            if (team() < half_teams) {                                                             \
                [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) {                              \
                    if (i / ADDED == turn) {                                                       \
                        ACCUMULATOR other;                                                         \
                        coopMatLoad(other, tiles, handed + i % ADDED * MM * ADD_LINE, ADD_LINE,    \
                                    gl_CooperativeMatrixLayoutRowMajor);                           \
                        sums[i] += other;                                                          \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            barrier();                                                                             \
        }                                                                                          \
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
// Sums of all teams, in a fixed order, where they are in shared memory on their way out.
vec4 staged4(int at) {
    vec4 sum = uintBitsToFloat(tiles[at]);
    [[unroll]] for (int i = 1; i < TEAMS; i++) sum += uintBitsToFloat(tiles[at + i * OUT_STAGE]);
    return sum;
}
float staged1(int at, int component) {
    float sum = uintBitsToFloat(tiles[at][component]);
    [[unroll]] for (int i = 1; i < TEAMS; i++) sum += uintBitsToFloat(tiles[at + i * OUT_STAGE][component]);
    return sum;
}

// Every sum of a subgroup, or of all teams, to the output, once the whole workgroup is done with the k-tiles, by way of
// shared memory. A kernel defines OUT_VEC, how many neighbours of a row a lane stores at a time, before it includes
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
#define OUT_ON(turn, e) ((turn) * OUT_HEIGHT + (OUT_FLAT ? 0 : (e) / OUT_STRIPS * OUT_BATCH * OUT_AT_ONCE))
#define OUT_MATRIX(i) ((i) / COLUMNS % STAGED_ROWS * MM * OUT_LINE + (i) % COLUMNS % STAGED * (MN / 4))
#define OUT_PLACE(e) places[OUT_FLAT ? (e) : (e) % OUT_STRIPS]
#define OUT_BARRIER        \
    if (TEAMS == 1) {      \
        subgroupBarrier(); \
    } else {               \
        barrier();         \
    }
#define STORE_ACCUMULATORS(PLACE, PLACE_OF, ADDED, LOAD_ADDED, STORE_OUTPUTS)                              \
    int out_lane = int(TEAMS == 1 ? gl_SubgroupInvocationID : gl_LocalInvocationID.x);                     \
    int scratch = int(gl_SubgroupID) * OUT_STAGE;                                                          \
    [[dont_unroll]] for (int part = 0; part < COLUMNS / STAGED; part++) {                                  \
        PLACE places[OUT_PLACES];                                                                          \
        ADDED ahead[OUT_STORES];                                                                           \
        [[unroll]] for (int e = 0; e < OUT_PLACES; e++) {                                                  \
            int column = first_column() + part * OUT_WIDTH + out_column(e, out_lane);                      \
            places[e] = PLACE_OF(first_row() + out_row(OUT_FLAT ? e : 0, out_lane), column);               \
        }                                                                                                  \
        [[unroll]] for (int e = 0; e < OUT_STORES; e++) ahead[e] = LOAD_ADDED(OUT_PLACE(e), OUT_ON(0, e)); \
        [[unroll]] for (int turn = 0; turn < ROWS / STAGED_ROWS; turn++) {                                 \
            ADDED added[OUT_STORES];                                                                       \
            vec4 low[OUT_STORES];                                                                          \
            vec4 high[OUT_STORES];                                                                         \
            [[unroll]] for (int e = 0; e < OUT_STORES; e++) {                                              \
                added[e] = ahead[e];                                                                       \
                ahead[e] = LOAD_ADDED(OUT_PLACE(e), OUT_ON(min(turn + 1, ROWS / STAGED_ROWS - 1), e));     \
            }                                                                                              \
            [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) {                                          \
                if (i / COLUMNS / STAGED_ROWS == turn && i % COLUMNS / STAGED == part) {                   \
                    coopMatStore(sums[i], tiles, scratch + OUT_MATRIX(i), OUT_LINE,                        \
                                 gl_CooperativeMatrixLayoutRowMajor);                                      \
                }                                                                                          \
            }                                                                                              \
            OUT_BARRIER                                                                                    \
            [[unroll]] for (int e = 0; e < OUT_STORES; e++) {                                              \
                int row = min(out_row(e, out_lane), OUT_HEIGHT - 1);                                       \
                int at = (TEAMS == 1 ? scratch : 0) + row * OUT_LINE + out_column(e, out_lane) / 4;        \
                if (OUT_VEC == 1) {                                                                        \
                    [[unroll]] for (int q = 0; q < 4; q++) {                                               \
                        int other = min(q * OUT_AT_ONCE, OUT_HEIGHT - 1 - row) * OUT_LINE;                 \
                        low[e][q] = staged1(at + other, out_column(e, out_lane) % 4);                      \
                    }                                                                                      \
                } else {                                                                                   \
                    low[e] = staged4(at);                                                                  \
                    high[e] = staged4(OUT_VEC == 8 ? at + 1 : at);                                         \
                }                                                                                          \
            }                                                                                              \
            [[unroll]] for (int e = 0; e < OUT_STORES; e++) {                                              \
                int left = OUT_HEIGHT - out_row(e, out_lane);                                              \
                bool is_lane = OUT_FLAT || out_lane / OUT_ACROSS < OUT_AT_ONCE;                            \
                if (OUT_LEFT_OVER == 0 || left > 0 && is_lane && out_column(e, out_lane) < OUT_WIDTH) {    \
                    STORE_OUTPUTS(OUT_PLACE(e), OUT_ON(turn, e), left, low[e], high[e], added[e])          \
                }                                                                                          \
            }                                                                                              \
            OUT_BARRIER                                                                                    \
        }                                                                                                  \
    }
#endif

#include "rounded.glsl"
