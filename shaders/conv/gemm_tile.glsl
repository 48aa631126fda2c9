// A workgroup's tile of a matrix product: k-tiles of both operands in shared memory, sums in registers. A workgroup
// makes BM x BN outputs; each invocation holds TM x TN of them as blocks of 4 x 4 that lie BM / (TM / 4) rows and BN /
// (TN / 4) columns apart, so that shared memory is read as vec4 without bank conflicts. Local size is (BM / TM) * (BN /
// TN). With two BUFFERS the next k-tile is stored while others still multiply the last one: one barrier for each k-tile
// and not two, for twice the shared memory.
#include "products.glsl"

const int TM4 = TM / 4;
const int TN4 = TN / 4;
const int LANES_M = BM / TM;
const int LANES_N = BN / TN;
const int LANES = LANES_M * LANES_N;
const int A_VECS = BK * BM / 4;
const int A_LOADS = (A_VECS + LANES - 1) / LANES;
const int B_LOADS = BK * BN / LANES;
const int B_STEP = LANES / BN;  // rows between two loads of one invocation: a whole number, see the route
const int ACCS = TM * TN4;

const int B_VECS = BK * BN / 4;

shared REAL4 a_tile[BUFFERS * A_VECS];  // [BUFFERS][BK][BM / 4]
shared REAL4 b_tile[BUFFERS * B_VECS];  // [BUFFERS][BK][BN / 4]

// The buffer of a k-tile.
int buffer_of(int k_tile) { return BUFFERS == 1 ? 0 : k_tile & 1; }

// Row and column in the tile of output i, j of an invocation.
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
#define MULTIPLY_K_TILE(lane, k_tile)                               \
    int a_from = buffer_of(k_tile) * A_VECS + (lane) / LANES_N;     \
    int b_from = buffer_of(k_tile) * B_VECS + (lane) % LANES_N;     \
    if (UNROLL) {                                                   \
        [[unroll]] for (int k = 0; k < BK; k++) MULTIPLY_AT(k)      \
    } else {                                                        \
        [[dont_unroll]] for (int k = 0; k < BK; k++) MULTIPLY_AT(k) \
    }

// What an invocation has loaded of a k-tile, from registers. With one buffer all lanes must be done with the last one.
#define STORE_K_TILE(a_next, b_next, lane, k_tile)                                                                 \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                                 \
        int vec = (lane) + i * LANES;                                                                              \
        if (A_VECS % LANES == 0 || vec < A_VECS) a_tile[buffer_of(k_tile) * A_VECS + vec] = a_next[i];             \
    }                                                                                                              \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                                 \
        b_tile[buffer_of(k_tile) * B_VECS + ((lane) / BN + i * B_STEP) * (BN / 4) + (lane) % BN / 4][(lane) % 4] = \
            b_next[i];                                                                                             \
    }
