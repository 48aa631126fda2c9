#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "divided.glsl"
#include "transposed_tile.glsl"
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

// An operand of conv2d_fragment.comp as that reads it: its matrices one after the other, [group][depth / MK][line / so
// many], a line being a row of the first operand or a column of the second, and depth what is summed over.
// FRAGMENT_ORDER: a matrix lies in it, [word][lane], words of eight elements; a subgroup loads it here and its lanes
// write what they then have, so that nobody needs to know the order. Otherwise, and where a lane has more of a matrix
// than its share (RDNA 3 has two of each element), it lies by lines. Lines are pixels of an output plane of all images,
// row y of which is row y * sh - pt of the input, columns alike: zeros where that has none, past the last line and past
// the depth of a group. Weights are images of one pixel. A workgroup transposes SIDE lines by SIDE of the depth in
// shared memory, so that lanes read neighbouring pixels.

const int LINES = FIRST ? MM : MN;  // of a matrix
const int WORDS = LINES * MK / SUBGROUP / 8;
const int ACROSS = SIDE / LINES;
const int MATRICES = SIDE / MK * ACROSS;

// A matrix of the tile, its lines along the depth, to the words from ``to`` on. Where a lane has one word of it, its
// elements are named by literals, and no compiler has to find out that they are constant.
#define WRITE_FRAGMENT(matrix, order)                                                                           \
    {                                                                                                           \
        coopMatLoad(matrix, tile, from, LINE, order);                                                           \
        if (WORDS == 1) {                                                                                       \
            y8[to + lane] = ELEMENTS8(matrix, 0);                                                               \
        } else {                                                                                                \
            [[unroll]] for (int v = 0; v < WORDS; v++) y8[to + v * SUBGROUP + lane] = ELEMENTS8(matrix, v * 8); \
        }                                                                                                       \
    }
#define ELEMENTS8(matrix, at) \
    uvec4(ELEMENTS2(matrix, (at) + 0), ELEMENTS2(matrix, (at) + 2), ELEMENTS2(matrix, (at) + 4), ELEMENTS2(matrix, (at) + 6))
#define ELEMENTS2(matrix, at) packFloat2x16(f16vec2(matrix[at], matrix[(at) + 1]))

void main() {
    int invocation = int(gl_LocalInvocationID.x);
    int across = (padded_lines + SIDE - 1) / SIDE;
    int down = (padded_depth + SIDE - 1) / SIDE;
    int index = int(flat_group());
    if (index >= groups * down * across) return;
    int first_line = index % across * SIDE;
    int first_depth = index / across % down * SIDE;
    int group = index / across / down;

    int line = first_line + invocation % SIDE;
    ivec2 row = divided(line, ow, w_factor, w_shift);
    ivec2 image = divided(row.x, oh, h_factor, h_shift);
    int from_y = image.y * sh - pt;
    int from_x = row.y * sw - pl;
    bool inside = line < lines && uint(from_y) < uint(h) && uint(from_x) < uint(w);
    int corner = image.x * image_step + group * group_step + from_y * w + from_x;

    uint bits[LOADS * 8];
    [[unroll]] for (int i = 0; i < LOADS; i++) {
        int k = first_depth + (i * (LANES / SIDE) + invocation / SIDE) * 8;
        [[unroll]] for (int q = 0; q < 8; q++) {
            bits[i * 8 + q] = inside && k + q < depth ? BITS_AT(x, corner + (k + q) * depth_step) : 0u;
        }
    }
    STORE_TRANSPOSED(bits, invocation)

    coopmat<float16_t, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA> a;
    coopmat<float16_t, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB> b;
    bool in_order = FRAGMENT_ORDER && a.length() * SUBGROUP == MM * MK && b.length() * SUBGROUP == MK * MN;
    int lane = int(gl_SubgroupInvocationID);
    [[unroll]] for (int i = 0; i < MATRICES; i += LANES / SUBGROUP) {
        int matrix = i + int(gl_SubgroupID);
        int to_line = first_line + matrix % ACROSS * LINES;
        int to_depth = first_depth + matrix / ACROSS * MK;
        if (matrix < MATRICES && to_line < padded_lines && to_depth < padded_depth) {
            int from = matrix % ACROSS * LINES * LINE + matrix / ACROSS * (MK / 8);
            int to = ((group * (padded_depth / MK) + to_depth / MK) * (padded_lines / LINES) + to_line / LINES) *
                     (WORDS * SUBGROUP);
            if (!in_order) {
                [[unroll]] for (int v = 0; v < WORDS; v++) {
                    int word = v * SUBGROUP + lane;
                    y8[to + word] = tile[from + word / (MK / 8) * LINE + word % (MK / 8)];
                }
            } else if (FIRST) {
                WRITE_FRAGMENT(a, gl_CooperativeMatrixLayoutRowMajor)
            } else {
                WRITE_FRAGMENT(b, gl_CooperativeMatrixLayoutColumnMajor)
            }
        }
    }
}
