// A workgroup's tile of a matrix product: slices of both operands in shared memory, sums in registers. A workgroup makes
// BM x BN outputs; each invocation holds TM x TN of them as blocks of 4 x 4 that lie BM / (TM / 4) rows and
// BN / (TN / 4) columns apart, so that shared memory is read as vec4 without bank conflicts. Local size is
// (BM / TM) * (BN / TN).
layout(constant_id = 5) const int BM = 64;
layout(constant_id = 6) const int BN = 64;
layout(constant_id = 7) const int BK = 16;
layout(constant_id = 8) const int TM = 4;
layout(constant_id = 9) const int TN = 4;
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

shared vec4 a_tile[A_VECS];  // [BK][BM / 4]
shared vec4 b_tile[BK * BN / 4];  // [BK][BN / 4]

// Row and column in the tile of output i, j of an invocation.
int tile_row(int lane, int i) { return (i / 4 * LANES_M + lane / LANES_N) * 4 + i % 4; }
int tile_column(int lane, int j) { return (j / 4 * LANES_N + lane % LANES_N) * 4 + j % 4; }

// The product of both slices onto vec4 acc[ACCS], which the compiler keeps in registers where no function has it.
#define MULTIPLY_SLICES(acc, lane) \
    [[unroll]] for (int k = 0; k < BK; k++) { \
        vec4 v[TN4]; \
        [[unroll]] for (int j = 0; j < TN4; j++) v[j] = b_tile[k * (BN / 4) + j * LANES_N + (lane) % LANES_N]; \
        [[unroll]] for (int i = 0; i < TM4; i++) { \
            vec4 u = a_tile[k * (BM / 4) + i * LANES_M + (lane) / LANES_N]; \
            [[unroll]] for (int r = 0; r < 4; r++) { \
                [[unroll]] for (int j = 0; j < TN4; j++) acc[(i * 4 + r) * TN4 + j] += u[r] * v[j]; \
            } \
        } \
    }

// The slices that an invocation has loaded, from registers.
#define STORE_SLICES(a_next, b_next, lane) \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) { \
        int vec = (lane) + i * LANES; \
        if (A_VECS % LANES == 0 || vec < A_VECS) a_tile[vec] = a_next[i]; \
    } \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) { \
        b_tile[((lane) / BN + i * B_STEP) * (BN / 4) + (lane) % BN / 4][(lane) % 4] = b_next[i]; \
    }
