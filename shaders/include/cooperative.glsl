// Tiles of a product of 16-bit floats by cooperative matrices: a workgroup makes BM x BN sums in f32 from BK-deep k-tiles
// of both operands in shared memory, each of its subgroups SM x SN of them by matrices of MM x MN, MK deep. Operands lie in
// shared memory as they do in their buffers, a along rows or (A_COL) columns, b along columns or (B_ROW) rows, so that
// eight elements go from one to the other as they are. A line has eight elements more than it needs: neighbouring lines
// begin in different banks. One k-tile at a time is in shared memory, the next one in registers: two in shared memory were
// slower by a half on the H200. Matrices are float16_t, which vkconv/bfloat16.py makes bf16 of for calls of that: nothing else
// may be. The sizes are whole, see vkconv/ops/kernels/coopmat.py.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

// 0 or 1, since no length of a shared array should be chosen by a bool (quirk adreno-840-842.19); as layouts of a matrix
// in memory 0 is by rows and 1 by columns.

const int LANES = BM / SM * (BN / SN) * SUBGROUP;
const int A_EIGHTS = (A_COL * BM + (1 - A_COL) * BK) / 8;  // of a line
const int B_EIGHTS = (B_ROW * BK + (1 - B_ROW) * BN) / 8;
const int A_LINE = A_EIGHTS + 1;
const int B_LINE = B_EIGHTS + 1;
const int B_FROM = (A_COL * BK + (1 - A_COL) * BM) * A_LINE;
const int K_TILE = B_FROM + (B_ROW * BN + (1 - B_ROW) * BK) * B_LINE;
const int A_COUNT = BM * BK / 8;
const int B_COUNT = BN * BK / 8;
const int A_LOADS = (A_COUNT + LANES - 1) / LANES;
const int B_LOADS = (B_COUNT + LANES - 1) / LANES;
const int ROWS = SM / MM;
const int COLUMNS = SN / MN;
// Sums on their way out, f32: a subgroup has STAGED matrices of them in a row, their lines four or, of
// an even number, eight longer than needed, so that pairs of four neighbouring rows are in different banks.
const int OUT_WIDTH = STAGED * MN;
const int OUT_LINE = OUT_WIDTH / 4 + 2 - STAGED % 2;
const int OUT_ROWS = SUBGROUP < OUT_WIDTH ? 1 : SUBGROUP / OUT_WIDTH;  // that a subgroup stores at a time

shared uvec4 tiles[K_TILE];

#define SUMS coopmat<float, gl_ScopeSubgroup, MM, MN, gl_MatrixUseAccumulator>

// First row and column, in the workgroup's tile, of this subgroup.
int first_row() { return int(gl_SubgroupID) / (BN / SN) * SM; }
int first_column() { return int(gl_SubgroupID) % (BN / SN) * SN; }

// What a lane has loaded of a k-tile, from registers: a_next[A_LOADS] and b_next[B_LOADS], which lie as AT_A(index) and
// AT_B(index) say of load ``index`` of all. These are macros since arrays that a function has leave the registers.
#define STORE_K_TILE                                                                          \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                            \
        int index = lane + i * LANES;                                                         \
        if (A_COUNT % LANES == 0 || index < A_COUNT) tiles[AT_A(index)] = a_next[i];          \
    }                                                                                         \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                            \
        int index = lane + i * LANES;                                                         \
        if (B_COUNT % LANES == 0 || index < B_COUNT) tiles[B_FROM + AT_B(index)] = b_next[i]; \
    }

// All k-tiles, one after the other: LOAD_K_TILE(step, CHECKED) reads one, and GATHERED puts what it has read into a_next and
// b_next, if that is not done. With CHECKED it makes zeros of what is beyond the sum, which only the last k-tile has, and not
// that where all are whole (ALL_WHOLE): tests in the loop cost a tenth. What is read is stored beyond a barrier: else compilers move
// the reading to the storing, and every k-tile is waited for.
#define MULTIPLY_K_TILES(steps, ALL_WHOLE)                                                     \
    LOAD_K_TILE(0, !(ALL_WHOLE))                                                               \
    GATHERED                                                                                   \
    STORE_K_TILE                                                                               \
    barrier();                                                                                 \
    for (int step = 1; step < (steps) - ((ALL_WHOLE) ? 0 : 1); step++) NEXT_K_TILE(step, false) \
    if (!(ALL_WHOLE) && (steps) > 1) NEXT_K_TILE((steps) - 1, true)                            \
    MULTIPLY_K_TILE                                                                            \
    barrier();
#define NEXT_K_TILE(step, CHECKED)  \
    {                               \
        LOAD_K_TILE(step, CHECKED)  \
        MULTIPLY_K_TILE             \
        GATHERED                    \
        barrier();                  \
        STORE_K_TILE                \
        barrier();                  \
    }

// Load i of single elements, of which there are the bits.
#define EIGHT(bits, i)                                                                          \
    uvec4(bits[(i) * 8] | bits[(i) * 8 + 1] << 16, bits[(i) * 8 + 2] | bits[(i) * 8 + 3] << 16, \
          bits[(i) * 8 + 4] | bits[(i) * 8 + 5] << 16, bits[(i) * 8 + 6] | bits[(i) * 8 + 7] << 16)

// name(at): eight neighbours of an operand of ``count`` elements near its end, past which its last one stands: what becomes of
// those is not stored.
#define NEAR_END(name, operand, count)                                                               \
    uvec4 name(int at) {                                                                             \
        uint bits[8];                                                                                \
        [[unroll]] for (int q = 0; q < 8; q++) bits[q] = BITS_AT(operand, min(at + q, (count) - 1)); \
        return EIGHT(bits, 0);                                                                       \
    }

// Eight elements of two words, from the one of that number on.
uvec4 shifted(uvec4 low, uvec4 high, int first) {
    bool by4 = (first & 4) != 0;
    uvec4 a = by4 ? uvec4(low.zw, high.xy) : low;
    uvec4 b = by4 ? uvec4(high.zw, 0u, 0u) : high;
    bool by2 = (first & 2) != 0;
    a = by2 ? uvec4(a.yzw, b.x) : a;
    uint after = by2 ? b.y : b.x;
    return (first & 1) != 0 ? a >> 16 | uvec4(a.yzw, after) << 16 : a;
}

// Loads that go along the lines.
#define ALONG_A(index) ((index) / A_EIGHTS * A_LINE + (index) % A_EIGHTS)
#define ALONG_B(index) ((index) / B_EIGHTS * B_LINE + (index) % B_EIGHTS)

// Where a line and a place along it are in a tile.
int in_a(int row, int depth) { return A_COL == 1 ? depth * A_LINE + row / 8 : row * A_LINE + depth / 8; }
int in_b(int depth, int column) { return B_ROW == 1 ? column * B_LINE + depth / 8 : depth * B_LINE + column / 8; }

// The product of a k-tile onto SUMS sums[ROWS * COLUMNS].
#define MULTIPLY_K_TILE                                                                                 \
    [[unroll]] for (int depth = 0; depth < BK; depth += MK) {                                           \
        coopmat<float16_t, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB> of_b[COLUMNS];                      \
        [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                                  \
            coopMatLoad(of_b[j], tiles, B_FROM + in_b(depth, first_column() + j * MN), B_LINE, B_ROW);  \
        }                                                                                               \
        [[unroll]] for (int i = 0; i < ROWS; i++) {                                                     \
            coopmat<float16_t, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA> of_a;                           \
            coopMatLoad(of_a, tiles, in_a(first_row() + i * MM, depth), A_LINE, A_COL);                 \
            [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                              \
                sums[i * COLUMNS + j] = coopMatMulAdd(of_a, of_b[j], sums[i * COLUMNS + j]);            \
            }                                                                                           \
        }                                                                                               \
    }

// Every sum of a subgroup, when all of the workgroup are done with the tiles, STAGED matrices in a row at a time. EIGHTS:
// STORE8(row, column, low, high) takes eight neighbours of a row of the workgroup's tile as two vec4. Else a lane has single
// ones of a column, neighbours of a row go to neighbouring lanes, and COLUMN4(row, step, limit, column, sums) takes those of
// four rows, ``step`` apart, where they are below ``limit``, as a vec4; what it needs to know of its column is declared by
// AT_COLUMN(column). The matrices of a turn are picked by branches: what an array of matrices is indexed by must be constant,
// or it leaves the registers.
#define STORE_SUMS(EIGHTS, STORE8, AT_COLUMN, COLUMN4)                                                      \
    int scratch = int(gl_SubgroupID) * MM * OUT_LINE;                                                       \
    int of_subgroup = int(gl_SubgroupInvocationID);                                                         \
    [[dont_unroll]] for (int turn = 0; turn < ROWS * COLUMNS / STAGED; turn++) {                            \
        [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) {                                               \
            if (i / STAGED == turn) {                                                                       \
                coopMatStore(sums[i], tiles, scratch + i % STAGED * (MN / 4), OUT_LINE,                     \
                             gl_CooperativeMatrixLayoutRowMajor);                                           \
            }                                                                                               \
        }                                                                                                   \
        subgroupBarrier();                                                                                  \
        int out_row = first_row() + turn * STAGED / COLUMNS * MM;                                           \
        int out_column = first_column() + turn * STAGED % COLUMNS * MN;                                     \
        if (EIGHTS) {                                                                                       \
            [[unroll]] for (int e = 0; e < MM * OUT_WIDTH / 8; e += SUBGROUP) {                             \
                int place = e + of_subgroup;                                                                \
                int to_row = place / (OUT_WIDTH / 8);                                                       \
                int to_column = place % (OUT_WIDTH / 8) * 8;                                                \
                int at = scratch + to_row * OUT_LINE + to_column / 4;                                       \
                if (MM * OUT_WIDTH / 8 % SUBGROUP == 0 || to_row < MM) {                                    \
                    STORE8(out_row + to_row, out_column + to_column, uintBitsToFloat(tiles[at]),            \
                           uintBitsToFloat(tiles[at + 1]));                                                 \
                }                                                                                           \
            }                                                                                               \
        } else {                                                                                            \
            int from_row = OUT_ROWS == 1 ? 0 : of_subgroup / OUT_WIDTH;                                     \
            [[unroll]] for (int wide = 0; wide < OUT_WIDTH; wide += SUBGROUP) {                             \
                int to_column = OUT_ROWS == 1 ? wide + of_subgroup : of_subgroup - from_row * OUT_WIDTH;    \
                if (to_column < OUT_WIDTH && from_row < OUT_ROWS) {                                         \
                    AT_COLUMN(out_column + to_column)                                                       \
                    int at = scratch + to_column / 4;                                                       \
                    [[dont_unroll]] for (int to_row = from_row; to_row < MM; to_row += 4 * OUT_ROWS) {      \
                        vec4 of_rows;                                                                       \
                        [[unroll]] for (int q = 0; q < 4; q++) {                                            \
                            int r = min(to_row + q * OUT_ROWS, MM - 1);                                     \
                            of_rows[q] = uintBitsToFloat(tiles[at + r * OUT_LINE][to_column % 4]);          \
                        }                                                                                   \
                        COLUMN4(out_row + to_row, OUT_ROWS, out_row + MM, out_column + to_column, of_rows); \
                    }                                                                                       \
                }                                                                                           \
            }                                                                                               \
        }                                                                                                   \
        subgroupBarrier();                                                                                  \
    }
// Where nothing needs to be known of a column.
#define ANY_COLUMN(column)

#ifdef DTYPE_f16
// The conversions that halves.glsl does by a dozen instructions, as one: rounded to nearest, ties to even, which is an
// execution mode that the device must have (RoundingModeRTE of 16 bits).
#extension GL_EXT_spirv_intrinsics : require
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4467], 4462, 16);
uint rounded2(vec2 v) { return packFloat2x16(f16vec2(v)); }
#else
uint rounded2(vec2 v) { return to_bits2(v); }
#endif

uvec2 rounded4(vec4 v) { return uvec2(rounded2(v.xy), rounded2(v.zw)); }

uvec4 rounded8(vec4 low, vec4 high) { return uvec4(rounded4(low), rounded4(high)); }

// The bits of element q of eight, which are 0 to begin with.
void put(inout uvec4 eight, int q, uint bits) { eight[q / 2] |= bits << (16 * (q & 1)); }
