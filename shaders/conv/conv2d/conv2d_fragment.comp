#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d_cooperative.glsl"

// The product of conv2d_cooperative.comp for 1x1, of operands that lie in fragment order, in whole matrices
// (pack_fragments.comp, which says how): a subgroup reads its own straight into registers, a word of eight elements a
// lane, neighbours from neighbours, two steps of MK in an iteration, each read while the one before it is multiplied.
// No shared memory but for sums on their way out, no barriers, no tests in the loop: operands are padded to whole tiles
// and pairs of steps. FRAGMENT_ORDER: matrices are put together from words, element by element, else they are loaded.

const int A_SIZE = MM * MK / 8;  // words of a matrix, and of that a lane's
const int B_SIZE = MK * MN / 8;
const int A_WORDS = A_SIZE / SUBGROUP;
const int B_WORDS = B_SIZE / SUBGROUP;

#define OF_A coopmat<float16_t, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA>
#define OF_B coopmat<float16_t, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB>

// The words of step ``step``: arrays of them, since drivers crash on arrays of matrices that a loop carries.
#define READ(of_a, of_b, step)                                   \
    [[unroll]] for (int i = 0; i < ROWS * A_WORDS; i++) {        \
        of_a[i] = weight[a_at + (step) * a_step + i * SUBGROUP]; \
    }                                                            \
    [[unroll]] for (int j = 0; j < COLUMNS * B_WORDS; j++) {     \
        of_b[j] = x[b_at + (step) * b_step + j * SUBGROUP];      \
    }

// A matrix from so many words of an array, the first of them at ``first``. Where it is one, as on most devices,
// elements are named by literals, and no compiler has to find out that they are constant.
#define PUT_TOGETHER(matrix, words, count, first)                                            \
    if ((count) == 1) {                                                                      \
        PUT8(matrix, 0, words[first])                                                        \
    } else {                                                                                 \
        [[unroll]] for (int v = 0; v < (count); v++) PUT8(matrix, v * 8, words[(first) + v]) \
    }
#define PUT8(matrix, at, word)           \
    {                                    \
        PUT2(matrix, (at) + 0, (word).x) \
        PUT2(matrix, (at) + 2, (word).y) \
        PUT2(matrix, (at) + 4, (word).z) \
        PUT2(matrix, (at) + 6, (word).w) \
    }
#define PUT2(matrix, at, bits)               \
    {                                        \
        f16vec2 two = unpackFloat2x16(bits); \
        matrix[at] = two.x;                  \
        matrix[(at) + 1] = two.y;            \
    }

#define MULTIPLY_READ(of_a, of_b)                                                                   \
    {                                                                                               \
        OF_B b[COLUMNS];                                                                            \
        [[unroll]] for (int j = 0; j < COLUMNS; j++) PUT_TOGETHER(b[j], of_b, B_WORDS, j * B_WORDS) \
        [[unroll]] for (int i = 0; i < ROWS; i++) {                                                 \
            OF_A a;                                                                                 \
            PUT_TOGETHER(a, of_a, A_WORDS, i * A_WORDS)                                             \
            [[unroll]] for (int j = 0; j < COLUMNS; j++) {                                          \
                sums[i * COLUMNS + j] = coopMatMulAdd(a, b[j], sums[i * COLUMNS + j]);              \
            }                                                                                       \
        }                                                                                           \
    }

void main() {
    int pixels = n * oh * ow;
    int row_blocks = (out_group() + BM - 1) / BM;
    int col_blocks = (pixels + BN - 1) / BN;
    int steps = (c_in / groups + 2 * MK - 1) / (2 * MK) * 2;

    int index = int(flat_group());
    if (index >= groups * row_blocks * col_blocks) return;
    int block_row = index % row_blocks;
    index /= row_blocks;
    int block_col = index % col_blocks;
    int group = index / col_blocks;

    // Words from one step to the next, and where this subgroup's first ones are.
    int a_step = row_blocks * (BM / MM) * A_SIZE;
    int b_step = col_blocks * (BN / MN) * B_SIZE;
    int a_from = group * steps * a_step + (block_row * BM + first_row()) / MM * A_SIZE;
    int b_from = group * steps * b_step + (block_col * BN + first_column()) / MN * B_SIZE;

    ACCUMULATOR sums[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) sums[i] = ACCUMULATOR(0.0);
    OF_A of_a;
    OF_B of_b;
    if (FRAGMENT_ORDER && of_a.length() * SUBGROUP == MM * MK && of_b.length() * SUBGROUP == MK * MN) {
        int a_at = a_from + int(gl_SubgroupInvocationID);
        int b_at = b_from + int(gl_SubgroupInvocationID);
        uvec4 even_a[ROWS * A_WORDS], odd_a[ROWS * A_WORDS];
        uvec4 even_b[COLUMNS * B_WORDS], odd_b[COLUMNS * B_WORDS];
        READ(even_a, even_b, 0)
        for (int step = 0; step < steps; step += 2) {
            READ(odd_a, odd_b, step + 1)
            MULTIPLY_READ(even_a, even_b)
            READ(even_a, even_b, min(step + 2, steps - 1))
            MULTIPLY_READ(odd_a, odd_b)
        }
    } else {
        for (int step = 0; step < steps; step++) {
            OF_B b[COLUMNS];
            [[unroll]] for (int j = 0; j < COLUMNS; j++) {
                coopMatLoad(b[j], x, b_from + step * b_step + j * B_SIZE, MK / 8, gl_CooperativeMatrixLayoutColumnMajor);
            }
            [[unroll]] for (int i = 0; i < ROWS; i++) {
                coopMatLoad(of_a, weight, a_from + step * a_step + i * A_SIZE, MK / 8,
                            gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int j = 0; j < COLUMNS; j++) {
                    sums[i * COLUMNS + j] = coopMatMulAdd(of_a, b[j], sums[i * COLUMNS + j]);
                }
            }
        }
    }
    STORE_ACCUMULATORS(Place, PLACE_OF, Added, added_to, STORE_OUTPUTS)
}
