#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "transposed_tile.glsl"
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

// Weights of conv2d_fragment.comp as that reads them: matrices of MM rows by MK products, one after the other,
// [group][step][row / MM], where a step is a tap of a block of MK channels and those of a block follow one another.
// FRAGMENT_ORDER: a matrix lies in it, [word][lane], words of eight elements; a subgroup loads it here and its lanes
// write what they then have, so that nobody needs to know the order. Otherwise, and where a lane has more of a matrix
// than its share (RDNA 3 has two of each element), it lies by lines. Zeros past the last row and channel of a group.
// With FRAGMENT_ORDER 2 lanes read the second operand as they hold it, and that order must be known (lane_holds): where
// the device has another one, all weights become NaN. A workgroup transposes SIDE rows by SIDE of the depth in shared
// memory.

const int WORDS = MM * MK / SUBGROUP / 8;
const int ACROSS = SIDE / MM;
const int MATRICES = SIDE / MK * ACROSS;

// Pairs of elements in the order of conv2d_fragment.comp.
#define ELEMENTS2(matrix, at) packFloat2x16(f16vec2(matrix[at], matrix[(at) + 1]))
#define ELEMENTS8(matrix, at) \
    uvec4(ELEMENTS2(matrix, at), ELEMENTS2(matrix, (at) + 4), ELEMENTS2(matrix, (at) + 2), ELEMENTS2(matrix, (at) + 6))

// The channel of a block that is product ``k`` of a step: lanes hold runs of four of a column in that order, read as
// neighbours.
int channel_of_step(int k) { return FRAGMENT_ORDER == 2 ? k % 8 / 2 * 4 + k % 2 + k / 8 * 2 : k; }

// What element ``e`` of a lane of the second operand is then held to be, as row and column.
ivec2 lane_holds(int lane, int e) { return ivec2(lane % 4 * 2 + e % 2 + e / 2 % 2 * 8, lane / 4 + e / 4 * 8); }

void main() {
    int invocation = int(gl_LocalInvocationID.x);
    int lane = int(gl_SubgroupInvocationID);
    int taps = kh * kw;
    int depth = (channels + MK - 1) / MK * MK * taps;
    int across = (padded_rows + SIDE - 1) / SIDE;
    int down = (depth + SIDE - 1) / SIDE;
    int index = int(flat_group());
    if (index >= groups * down * across) return;
    int first_row = index % across * SIDE;
    int first_depth = index / across % down * SIDE;
    int group = index / across / down;

    bool known = true;
    if (FRAGMENT_ORDER == 2) {
        // A matrix whose elements are their numbers, column by column.
        if (invocation < MN * (MK / 8)) {
            uint number = uint(invocation / (MK / 8) * MK + invocation % (MK / 8) * 8);
            tile[invocation / (MK / 8) * LINE + invocation % (MK / 8)] =
                uvec4(number, number + 2u, number + 4u, number + 6u) * 0x10001u + 0x10000u;
        }
        barrier();
        coopmat<float16_t, gl_ScopeSubgroup, MK, MN, gl_MatrixUseB> b;
        coopMatLoad(b, tile, 0, LINE, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (int e = 0; e < 8; e += 2) {
            uvec2 place = uvec2(lane_holds(lane, e));
            uint number = place.y * MK + place.x;
            known = known && ELEMENTS2(b, e) == (number | number + 1u << 16);
        }
        barrier();
    }

    int row = first_row + invocation % SIDE;
    uint bits[LOADS * 8];
    [[unroll]] for (int i = 0; i < LOADS; i++) {
        int k = first_depth + (i * (LANES / SIDE) + invocation / SIDE) * 8;
        [[unroll]] for (int q = 0; q < 8; q++) {
            int step = (k + q) / MK;
            int channel = step / taps * MK + channel_of_step((k + q) % MK);
            int from = ((group * rows + row) * channels + channel) * taps + step % taps;
            bits[i * 8 + q] = row < rows && channel < channels ? BITS_AT(w, from) : 0u;
        }
    }
    STORE_TRANSPOSED(bits, invocation)

    coopmat<float16_t, gl_ScopeSubgroup, MM, MK, gl_MatrixUseA> a;
    bool in_order = FRAGMENT_ORDER > 0 && a.length() * SUBGROUP == MM * MK;
    [[unroll]] for (int i = 0; i < MATRICES; i += LANES / SUBGROUP) {
        int matrix = i + int(gl_SubgroupID);
        int to_row = first_row + matrix % ACROSS * MM;
        int to_depth = first_depth + matrix / ACROSS * MK;
        if (matrix < MATRICES && to_row < padded_rows && to_depth < depth) {
            int from = matrix % ACROSS * MM * LINE + matrix / ACROSS * (MK / 8);
            int to = ((group * (depth / MK) + to_depth / MK) * (padded_rows / MM) + to_row / MM) * (WORDS * SUBGROUP);
            if (!in_order) {
                [[unroll]] for (int v = 0; v < WORDS; v++) {
                    int word = v * SUBGROUP + lane;
                    y8[to + word] = tile[from + word / (MK / 8) * LINE + word % (MK / 8)];
                }
            } else {
                coopMatLoad(a, tile, from, LINE, gl_CooperativeMatrixLayoutRowMajor);
                if (WORDS == 1) {  // elements that literals name are constant to any compiler
                    y8[to + lane] = known ? ELEMENTS8(a, 0) : uvec4(0x7FFF7FFFu);
                } else {
                    [[unroll]] for (int v = 0; v < WORDS; v++) y8[to + v * SUBGROUP + lane] = ELEMENTS8(a, v * 8);
                }
            }
        }
    }
}
