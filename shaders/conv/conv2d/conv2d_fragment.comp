#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d_cooperative.glsl"

// Implicit GEMM by cooperative matrices (conv2d_cooperative.comp) whose operands go from memory into registers without
// barriers of the workgroup, STAGES - 1 steps of MK ahead of the products, and without tests in the loop. Shared memory
// has sums on their way out. Weights lie in fragment order (pack_fragments.comp), a word of eight elements a lane. The
// input is a copy with channels last, padded, in blocks of MK channels (channels_last.comp): of its column's block a
// lane reads what it holds of a matrix, and a subgroup reads neighbouring pixels as one run. A block's taps follow one
// another: they read the same pixels, but for the window's border.
// FRAGMENT_ORDER: 2 where runs of four elements of a block are what lanes hold, as pack_fragments.comp says; 1: words
// of eight are read, which become matrices by way of shared memory of the subgroup's own; 0: besides, matrices of
// weights lie line by line, and are loaded as such.

const int A_SIZE = MM * MK / 8;  // words of a matrix, and of that a lane's
const int B_SIZE = MK * MN / 8;
const int A_WORDS = A_SIZE / SUBGROUP;
const int B_WORDS = B_SIZE / SUBGROUP;
const bool IN_RUNS = FRAGMENT_ORDER == 2;
const int HELD = IN_RUNS ? 2 : B_WORDS;              // reads of a lane, of a matrix
const int PARTS = IN_RUNS ? MK / 4 : MK / 8;         // lanes that read a pixel's block
const uint PART_BYTES = IN_RUNS ? 8u : 16u;
const uint BYTES = 2u * MK;
const int LANE_COLUMNS = SUBGROUP / PARTS;           // columns that a subgroup reads at a time
const int B_LINE8 = MK / 8 + 1;                      // words from column to column in shared memory

#define OF_A coopmat<float16_t, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA>
#define OF_B coopmat<float16_t, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB>

// Arrays of words, since drivers crash on arrays of matrices that a loop carries.
#define READ_A(of_a, at_step)                                       \
    [[unroll]] for (int i = 0; i < ROWS * A_WORDS; i++) {           \
        of_a[i] = weight[a_at + (at_step) * a_step + i * SUBGROUP]; \
    }
// Those of the next step: its tap follows, or the first one of the next block.
#define READ_B(of_b)                                          \
    {                                                         \
        [[unroll]] for (int j = 0; j < COLUMNS * HELD; j++) { \
            if (IN_RUNS) {                                    \
                of_b[j].xy = x4[(b_at[j] + b_from) >> 3];     \
            } else {                                          \
                of_b[j] = x[(b_at[j] + b_from) >> 4];         \
            }                                                 \
        }                                                     \
        if (++ahead < last) {                                 \
            bool turns = ++kx == KW;                          \
            b_from += turns ? to_row : to_column;             \
            if (turns) kx = 0;                                \
            bool ends = turns && ++ky == KH;                  \
            if (ends) b_from += to_block;                     \
            if (ends) ky = 0;                                 \
        }                                                     \
    }
#define READ(of_a, of_b, at_step) \
    {                             \
        READ_A(of_a, at_step)     \
        READ_B(of_b)              \
    }

// Elements are named by literals where a lane has one word of a matrix, as on most devices: no compiler has to find out
// that they are constant.
#define PUT2(matrix, at, bits)               \
    {                                        \
        f16vec2 two = unpackFloat2x16(bits); \
        matrix[at] = two.x;                  \
        matrix[(at) + 1] = two.y;            \
    }
// The order of the words of the first operand is that of the registers of NVIDIA's instruction: elements in another
// would be moved at each use.
#define PUT8_A(matrix, at, word)         \
    {                                    \
        PUT2(matrix, (at), (word).x)     \
        PUT2(matrix, (at) + 4, (word).y) \
        PUT2(matrix, (at) + 2, (word).z) \
        PUT2(matrix, (at) + 6, (word).w) \
    }
#define MATRIX_OF_A(matrix, words, first)                                                      \
    if (A_WORDS == 1) {                                                                        \
        PUT8_A(matrix, 0, words[first])                                                        \
    } else {                                                                                   \
        [[unroll]] for (int v = 0; v < A_WORDS; v++) PUT8_A(matrix, v * 8, words[(first) + v]) \
    }
#define MATRICES_OF_B(b, words)                                                            \
    [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                         \
        if (IN_RUNS) {                                                                     \
            PUT2(b[j], 0, words[j * HELD].x)                                               \
            PUT2(b[j], 2, words[j * HELD].y)                                               \
            PUT2(b[j], 4, words[j * HELD + HELD - 1].x)                                    \
            PUT2(b[j], 6, words[j * HELD + HELD - 1].y)                                    \
        } else {                                                                           \
            [[unroll]] for (int v = 0; v < HELD; v++) {                                    \
                tiles[own + (v * LANE_COLUMNS + lane / PARTS) * B_LINE8 + lane % PARTS] =  \
                    words[j * HELD + v];                                                   \
            }                                                                              \
            subgroupBarrier();                                                             \
            coopMatLoad(b[j], tiles, own, B_LINE8, gl_CooperativeMatrixLayoutColumnMajor); \
            subgroupBarrier();                                                             \
        }                                                                                  \
    }

#define MULTIPLY_ROW(a, b, i)                                                      \
    [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                 \
        sums[(i) * COLUMNS + j] = coopMatMulAdd(a, b[j], sums[(i) * COLUMNS + j]); \
    }
#define MULTIPLY(of_a, of_b)                        \
    {                                               \
        OF_B b[COLUMNS];                            \
        MATRICES_OF_B(b, of_b)                      \
        [[unroll]] for (int i = 0; i < ROWS; i++) { \
            OF_A a;                                 \
            MATRIX_OF_A(a, of_a, i * A_WORDS)       \
            MULTIPLY_ROW(a, b, i)                   \
        }                                           \
    }

void main() {
    int columns = all_columns();
    int row_blocks = (out_group() + BM - 1) / BM;
    int col_blocks = (columns + BN - 1) / BN;
    int blocks = (c_in / groups + MK - 1) / MK;
    int steps = blocks * KH * KW;

    int index = int(flat_group());
    if (index >= SPLIT_K * groups * row_blocks * col_blocks) return;
    int block_row = index % row_blocks;
    index /= row_blocks;
    int block_col = index % col_blocks;
    index /= col_blocks;
    int group = SPLIT_K == 1 ? index : index % groups;
    int slice = SPLIT_K == 1 ? 0 : index / groups;
    first_of_slice = slice * n * c_out * oh * ow;
    int step = SPLIT_K == 1 ? 0 : slice * steps / SPLIT_K;
    int last = SPLIT_K == 1 ? steps : (slice + 1) * steps / SPLIT_K;

    int lane = int(gl_SubgroupInvocationID);
    int own = int(gl_SubgroupID) * MN * B_LINE8;
    int a_step = row_blocks * (BM / MM) * A_SIZE;
    int a_from = group * steps * a_step + (block_row * BM + first_row()) / MM * A_SIZE;
    int a_at = a_from + lane;

    // Bytes: an index of what is read in words of eight is a 32-bit offset to compilers, which saves a register each.
    int plane = last_h * last_w;
    uint b_at[COLUMNS * HELD];
    [[unroll]] for (int j = 0; j < COLUMNS * HELD; j++) {
        // Past the last pixel that is read again: those sums are not stored.
        int column = block_col * BN + first_column() + j * LANE_COLUMNS + lane / PARTS;
        ivec2 p = image_and_pixel(min(column, columns - 1));
        ivec2 at = row_and_column(p.y);
        uint pixel = uint(p.x * plane + at.x * last_sh * last_w + at.y * last_sw);
        b_at[j] = pixel * BYTES + uint(lane % PARTS) * PART_BYTES;
    }
    int ky = step / KW % KH;
    int kx = step % KW;
    uint b_from = uint((group * blocks + step / (KH * KW)) * n * plane + ky * dh * last_w + kx * dw) * BYTES;
    uint to_column = uint(dw) * BYTES;
    uint to_row = uint(dh * last_w - (KW - 1) * dw) * BYTES;
    uint to_block = uint(n * plane - KH * dh * last_w) * BYTES;
    int ahead = step;

    ACCUMULATOR sums[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) sums[i] = ACCUMULATOR(0.0);
    uvec4 b0[COLUMNS * HELD];
    OF_A of_a;
    if (FRAGMENT_ORDER > 0 && of_a.length() * SUBGROUP == MM * MK) {
        uvec4 a0[ROWS * A_WORDS], a1[ROWS * A_WORDS], a2[ROWS * A_WORDS];
        uvec4 b1[COLUMNS * HELD], b2[COLUMNS * HELD];
        READ(a0, b0, step)
        // The last steps by themselves: a branch in the loop has compilers copy what it carries.
        if (STAGES == 2) {
            for (; step + 1 < last; step += 2) {
                READ(a1, b1, step + 1)
                MULTIPLY(a0, b0)
                READ(a0, b0, min(step + 2, last - 1))
                MULTIPLY(a1, b1)
            }
            if (step < last) MULTIPLY(a0, b0)
        } else {
            READ(a1, b1, min(step + 1, last - 1))
            for (; step + 2 < last; step += 3) {
                READ(a2, b2, step + 2)
                MULTIPLY(a0, b0)
                READ(a0, b0, min(step + 3, last - 1))
                MULTIPLY(a1, b1)
                READ(a1, b1, min(step + 4, last - 1))
                MULTIPLY(a2, b2)
            }
            if (step < last) MULTIPLY(a0, b0)
            if (step + 1 < last) MULTIPLY(a1, b1)
        }
    } else {
        for (; step < last; step++) {
            READ_B(b0)
            OF_B b[COLUMNS];
            MATRICES_OF_B(b, b0)
            [[unroll]] for (int i = 0; i < ROWS; i++) {
                coopMatLoad(of_a, weight, a_from + step * a_step + i * A_SIZE, MK / 8,
                            gl_CooperativeMatrixLayoutRowMajor);
                MULTIPLY_ROW(of_a, b, i)
            }
        }
    }
    // Sums on their way out may lie where another subgroup has a matrix.
    if (!IN_RUNS) barrier();
    STORE_ACCUMULATORS(Place, PLACE_OF, Added, added_to, STORE_OUTPUTS)
}
