// A workgroup's tile of a matrix product: k-tiles of both operands in shared memory, sums in registers. A workgroup
// makes BM x BN outputs; each invocation holds TM x TN of them as blocks of 4 x 4 that lie BM / (TM / 4) rows and BN /
// (TN / 4) columns apart, so that shared memory is read as vec4 without bank conflicts. Local size is (BM / TM) * (BN /
// TN). With two BUFFERS the next k-tile is stored while others still multiply the last one: one barrier for each k-tile
// and not two, for twice the shared memory. With SLICED_K a workgroup has TEAMS teams of that local size, each with sums
// of the whole tile: every k-tile is loaded by all invocations, each team multiplies its part of the depth, and ADD_TEAMS
// adds up what they have, in a fixed order. TEAMS is a power of two, and TEAMS / 2 * BN at most BK.
#include "products.glsl"

const int TM4 = TM / 4;
const int TN4 = TN / 4;
const int LANES_M = BM / TM;
const int LANES_N = BN / TN;
const int TEAM = LANES_M * LANES_N;
#ifdef SLICED_K
const int LANES = TEAMS * TEAM;
const int TEAM_DEPTH = BK / TEAMS;
#else
const int LANES = TEAM;
#define TEAM_DEPTH BK
#endif
const int A_VECS = BK * BM / 4;
const int A_LOADS = (A_VECS + LANES - 1) / LANES;
const int B_VECS = BK * BN / 4;
// What an invocation loads of b at a time, how many of them it loads, and of a row; rows between two loads of one
// invocation are a whole number, see the route.
#ifdef VEC4_COLUMNS
#define B_LOAD REAL4
const int B_LOADS = (B_VECS + LANES - 1) / LANES;
const int B_ROW = BN / 4;
#else
#define B_LOAD REAL
const int B_LOADS = BK * BN / LANES;
#define B_ROW BN
#endif
const int B_STEP = LANES / B_ROW;
const int ACCS = TM * TN4;

shared REAL4 a_tile[BUFFERS * A_VECS];  // [BUFFERS][BK][BM / 4]
shared REAL4 b_tile[BUFFERS * B_VECS];  // [BUFFERS][BK][BN / 4]

// The buffer of a k-tile.
int buffer_of(int k_tile) { return BUFFERS == 1 ? 0 : k_tile & 1; }

// Row and column in the tile of output i, j of an invocation of a team.
int tile_row(int lane, int i) { return (i / 4 * LANES_M + lane / LANES_N) * 4 + i % 4; }
int tile_column(int lane, int j) { return (j / 4 * LANES_N + lane % LANES_N) * 4 + j % 4; }

// The product of both parts of a k-tile onto vec4 acc[ACCS], which the compiler keeps in registers where no function
// has it. Without UNROLL it is a loop: compilers that load all of an unrolled k-tile at once run out of registers.
#define MULTIPLY_AT(k)                                                                                  \
    {                                                                                                   \
        REAL4 v[TN4];                                                                                   \
        [[unroll]] for (int j = 0; j < TN4; j++) v[j] = b_tile[b_from + (k) * (BN / 4) + j * LANES_N];  \
        [[unroll]] for (int i = 0; i < TM4; i++) {                                                      \
            REAL4 u = a_tile[a_from + (k) * (BM / 4) + i * LANES_M];                                    \
            [[unroll]] for (int r = 0; r < 4; r++) {                                                    \
                [[unroll]] for (int j = 0; j < TN4; j++) PARTIAL[(i * 4 + r) * TN4 + j] += u[r] * v[j]; \
            }                                                                                           \
        }                                                                                               \
    }
#ifdef SLICED_K
#define MEMBER(lane) ((lane) % TEAM)
#define TEAM_K(lane) ((lane) / TEAM * TEAM_DEPTH)
#else
#define MEMBER(lane) (lane)
#define TEAM_K(lane) 0
#endif
#define MULTIPLY_K_TILE(lane, k_tile)                                                                           \
    int a_from = buffer_of(k_tile) * A_VECS + TEAM_K(lane) * (BM / 4) + MEMBER(lane) / LANES_N;                 \
    int b_from = buffer_of(k_tile) * B_VECS + TEAM_K(lane) * (BN / 4) + MEMBER(lane) % LANES_N;                 \
    if (UNROLL) {                                                                                               \
        [[unroll]] for (int k = 0; k < TEAM_DEPTH; k++) MULTIPLY_AT(k)                                          \
    } else {                                                                                                    \
        [[dont_unroll]] for (int k = 0; k < TEAM_DEPTH; k++) MULTIPLY_AT(k)                                     \
    }

#ifdef SLICED_K
// The sums of all teams onto acc[ACCS] of the first one, once nobody reads a k-tile any more.
#define ADD_TEAMS(lane)                                                                                         \
    [[unroll]] for (int adding = TEAMS / 2; adding > 0; adding /= 2) {                                          \
        int from = (lane) / TEAM - adding;                                                                      \
        if (from >= 0 && from < adding) {                                                                       \
            [[unroll]] for (int i = 0; i < ACCS; i++) a_tile[(from * ACCS + i) * TEAM + MEMBER(lane)] = acc[i]; \
        }                                                                                                       \
        barrier();                                                                                              \
        if (from < 0) {                                                                                         \
            int at = (from + adding) * ACCS * TEAM + MEMBER(lane);                                              \
            [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] += a_tile[at + i * TEAM];                          \
        }                                                                                                       \
        barrier();                                                                                              \
    }
#endif

#ifdef VEC4_COLUMNS
#define STORE_B(b_next, lane, k_tile)                                                                   \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                      \
        int vec = (lane) + i * LANES;                                                                   \
        if (B_VECS % LANES == 0 || vec < B_VECS) b_tile[buffer_of(k_tile) * B_VECS + vec] = b_next[i];  \
    }
#else
#define STORE_B(b_next, lane, k_tile)                                                                              \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                                 \
        b_tile[buffer_of(k_tile) * B_VECS + ((lane) / BN + i * B_STEP) * (BN / 4) + (lane) % BN / 4][(lane) % 4] = \
            b_next[i];                                                                                             \
    }
#endif
// What an invocation has loaded of a k-tile, from registers. With one buffer all lanes must be done with the last one.
#define STORE_K_TILE(a_next, b_next, lane, k_tile)                                                                 \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                                 \
        int vec = (lane) + i * LANES;                                                                              \
        if (A_VECS % LANES == 0 || vec < A_VECS) a_tile[buffer_of(k_tile) * A_VECS + vec] = a_next[i];             \
    }                                                                                                              \
    STORE_B(b_next, lane, k_tile)
