// Tiles of a product of 16-bit floats by cooperative matrices: a workgroup makes BM x BN sums in f32 from BK-deep slices
// of both operands in shared memory, each of its subgroups SM x SN of them by matrices of MM x MN, MK deep. Operands lie in
// shared memory as they do in their buffers, a along rows or (A_COL) columns, b along columns or (B_ROW) rows, so that
// eight elements go from one to the other as they are. A line has eight elements more than it needs: neighbouring lines
// begin in different banks. The sizes are whole, see vkconv/ops/cooperative.py.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

layout(constant_id = 6) const int BM = 32;
layout(constant_id = 7) const int BN = 32;
layout(constant_id = 8) const int BK = 16;
layout(constant_id = 9) const int SM = 16;
layout(constant_id = 10) const int SN = 16;
layout(constant_id = 11) const int BUFFERS = 2;
layout(constant_id = 12) const int MM = 16;
layout(constant_id = 13) const int MN = 16;
layout(constant_id = 14) const int MK = 16;
layout(constant_id = 15) const int SUBGROUP = 32;
// 0 or 1, since no length of a shared array should be chosen by a bool (quirk adreno-840-842.19); as layouts of a matrix
// in memory 0 is by rows and 1 by columns.
layout(constant_id = 16) const int A_COL = 0;
layout(constant_id = 17) const int B_ROW = 0;

const int LANES = BM / SM * (BN / SN) * SUBGROUP;
const int A_EIGHTS = (A_COL * BM + (1 - A_COL) * BK) / 8;  // of a line
const int B_EIGHTS = (B_ROW * BK + (1 - B_ROW) * BN) / 8;
const int A_LINE = A_EIGHTS + 1;
const int B_LINE = B_EIGHTS + 1;
const int B_FROM = (A_COL * BK + (1 - A_COL) * BM) * A_LINE;
const int SLICE = B_FROM + (B_ROW * BN + (1 - B_ROW) * BK) * B_LINE;
const int A_COUNT = BM * BK / 8;
const int B_COUNT = BN * BK / 8;
const int A_LOADS = (A_COUNT + LANES - 1) / LANES;
const int B_LOADS = (B_COUNT + LANES - 1) / LANES;
const int ROWS = SM / MM;
const int COLUMNS = SN / MN;
// A matrix of sums on its way out, f32, by rows that are four longer: each subgroup has its own.
const int OUT_LINE = MN / 4 + 1;

shared uvec4 tiles[BUFFERS * SLICE];

#define SUMS coopmat<float, gl_ScopeSubgroup, MM, MN, gl_MatrixUseAccumulator>

// First row and column, in the workgroup's tile, of this subgroup.
int first_row() { return int(gl_SubgroupID) / (BN / SN) * SM; }
int first_column() { return int(gl_SubgroupID) % (BN / SN) * SN; }

// Where slice 0, 2, .. and slice 1, 3, .. lie: constants, or matrices are loaded many times slower.
const int EVEN = 0;
const int ODD = (BUFFERS - 1) * SLICE;

// What becomes of a slice between its loads and the stores to shared memory: of most shaders nothing.
#ifndef FINISH_SLICE
#define FINISH_SLICE
#endif

// What a lane has loaded of a slice, from registers: a_next[A_LOADS] and b_next[B_LOADS], which lie as AT_A(index) and
// AT_B(index) say of load ``index`` of all. These are macros since arrays that a function has leave the registers.
#define STORE_SLICE(from)                                                                            \
    FINISH_SLICE                                                                                     \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                   \
        int index = lane + i * LANES;                                                                \
        if (A_COUNT % LANES == 0 || index < A_COUNT) tiles[from + AT_A(index)] = a_next[i];          \
    }                                                                                                \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                   \
        int index = lane + i * LANES;                                                                \
        if (B_COUNT % LANES == 0 || index < B_COUNT) tiles[from + B_FROM + AT_B(index)] = b_next[i]; \
    }

// All slices, one after the other: LOAD_SLICE(step) takes one into a_next and b_next. The next is on its way while one is
// multiplied.
#define MULTIPLY_SLICES(steps)                         \
    LOAD_SLICE(0)                                      \
    STORE_SLICE(EVEN)                                  \
    barrier();                                         \
    for (int step = 0;; step += 2) {                   \
        if (step + 1 < steps) { LOAD_SLICE(step + 1) } \
        MULTIPLY_SLICE(EVEN)                           \
        if (step + 1 >= steps) break;                  \
        if (BUFFERS == 1) barrier();                   \
        STORE_SLICE(ODD)                               \
        barrier();                                     \
        if (step + 2 < steps) { LOAD_SLICE(step + 2) } \
        MULTIPLY_SLICE(ODD)                            \
        if (step + 2 >= steps) break;                  \
        if (BUFFERS == 1) barrier();                   \
        STORE_SLICE(EVEN)                              \
        barrier();                                     \
    }                                                  \
    barrier();

// Loads that go along the lines.
#define ALONG_A(index) ((index) / A_EIGHTS * A_LINE + (index) % A_EIGHTS)
#define ALONG_B(index) ((index) / B_EIGHTS * B_LINE + (index) % B_EIGHTS)

// Where a line and a place along it are in a tile.
int in_a(int row, int depth) { return A_COL == 1 ? depth * A_LINE + row / 8 : row * A_LINE + depth / 8; }
int in_b(int depth, int column) { return B_ROW == 1 ? column * B_LINE + depth / 8 : depth * B_LINE + column / 8; }

// The product of both parts of a slice onto SUMS sums[ROWS * COLUMNS].
#define MULTIPLY_SLICE(from)                                                                                       \
    [[unroll]] for (int depth = 0; depth < BK; depth += MK) {                                                      \
        coopmat<float16_t, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB> of_b[COLUMNS];                                 \
        [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                                             \
            coopMatLoad(of_b[j], tiles, from + B_FROM + in_b(depth, first_column() + j * MN), B_LINE, B_ROW); \
        }                                                                                                          \
        [[unroll]] for (int i = 0; i < ROWS; i++) {                                                                \
            coopmat<float16_t, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA> of_a;                                      \
            coopMatLoad(of_a, tiles, from + in_a(first_row() + i * MM, depth), A_LINE, A_COL);         \
            [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                                         \
                sums[i * COLUMNS + j] = coopMatMulAdd(of_a, of_b[j], sums[i * COLUMNS + j]);                       \
            }                                                                                                      \
        }                                                                                                          \
    }

// Every sum of a subgroup, when all of the workgroup are done with the tiles: STORE8(row, column, low, high) takes eight
// neighbours of a row of the workgroup's tile as two vec4. STORE8 is there once, and the matrix of a turn is picked by
// branches: what an array of matrices is indexed by must be constant, or it leaves the registers.
#define STORE_SUMS(STORE8)                                                                                         \
    int scratch = int(gl_SubgroupID) * MM * OUT_LINE;                                                              \
    [[dont_unroll]] for (int turn = 0; turn < ROWS * COLUMNS; turn++) {                                            \
        [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) {                                                      \
            if (i == turn) coopMatStore(sums[i], tiles, scratch, OUT_LINE, gl_CooperativeMatrixLayoutRowMajor);    \
        }                                                                                                          \
        subgroupBarrier();                                                                                         \
        for (int e = 8 * int(gl_SubgroupInvocationID); e < MM * MN; e += 8 * SUBGROUP) {                           \
            int at = scratch + e / MN * OUT_LINE + e % MN / 4;                                                     \
            STORE8(first_row() + turn / COLUMNS * MM + e / MN, first_column() + turn % COLUMNS * MN + e % MN,      \
                   uintBitsToFloat(tiles[at]), uintBitsToFloat(tiles[at + 1]));                                    \
        }                                                                                                          \
        subgroupBarrier();                                                                                         \
    }

uvec4 to_bits8(vec4 low, vec4 high) { return uvec4(to_bits4(low), to_bits4(high)); }

// The bits of element q of eight, which are 0 to begin with.
void put(inout uvec4 eight, int q, uint bits) { eight[q / 2] |= bits << (16 * (q & 1)); }
