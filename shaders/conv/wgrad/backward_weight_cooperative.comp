#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "backward_weight_sum.glsl"
#include "backward_weight_pixels.glsl"
const int OUT_VEC = 8;
#include "cooperative.glsl"

// Implicit GEMM of each group by cooperative matrices: (output channels) x (taps and input channels), summed over
// images and pixels of dy, slices in f32 (backward_weight_gemm.comp has the same on the lanes). A load is eight
// channels of one pixel, so that neighbouring lanes read neighbouring pixels of each, whatever the length of a row.
// Columns are [tap][input channel, up to a multiple of 8]: the eight of a load meet the same tap, and one test says
// whether it is inside of x. A slice is a run of all pixels in a row. An invocation has the same pixel of every k-tile
// in all its loads: LANES is a multiple of BK.
const int TAPS = KD * KH * KW;

#define SLOT_A(index) ((index) % BK * A_LINE + (index) / BK)
#define SLOT_B(index) ((index) % BK * B_LINE + (index) / BK)

// Whether the k-tile has load i of this invocation, which most often is known beforehand.
#define NEEDED(count, i) (((i) + 1) * LANES <= (count) || lane + (i) * LANES < (count))

// A k-tile into registers, bits of single elements: they are put together only when they are there. What is beyond the
// sum or x is read at 0 and masked; channels past the last repeat it, since their sums are not stored.
#define LOAD_K_TILE(step, CHECKED)                                                                 \
    {                                                                                              \
        bool inside = pixel < pixels;                                                              \
        int a_first = place.x * c_out * plane + (place.y * oh + place.z) * ow + place.w;           \
        a_mask = inside ? 0xFFFFFFFFu : 0u;                                                        \
        [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                             \
            if (NEEDED(A_COUNT, i)) {                                                              \
                int at = inside ? a_first + a_offset[i] : 0;                                       \
                [[unroll]] for (int q = 0; q < 8; q++) {                                           \
                    a_bits[i * 8 + q] = BITS_AT(dy, at + (WHOLE ? q : min(q, a_last[i])) * plane); \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        int iz = DEEP ? place.y * sd - pf : 0;                                                     \
        int iy = place.z * sh - pt;                                                                \
        int ix = place.w * sw - pl;                                                                \
        int b_first = (((place.x * c_in + group * in_group) * d + iz) * h + iy) * w + ix;          \
        [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                             \
            if (NEEDED(B_COUNT, i)) {                                                              \
                bool ok = inside;                                                                  \
                if (PADDED) {                                                                      \
                    ok = ok && uint(iy + reach_y[i]) < uint(h) && uint(ix + reach_x[i]) < uint(w); \
                    if (DEEP) ok = ok && uint(iz + reach_z[i]) < uint(d);                          \
                }                                                                                  \
                int at = ok ? b_first + b_offset[i] : 0;                                           \
                b_mask[i] = ok ? 0xFFFFFFFFu : 0u;                                                 \
                [[unroll]] for (int q = 0; q < 8; q++) {                                           \
                    b_bits[i * 8 + q] = BITS_AT(x, at + (WHOLE ? q : min(q, b_last[i])) * volume); \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        pixel += BK;                                                                               \
        place = moved(place, step_by, box);                                                        \
    }

#define FINISH_LOADS                                                                      \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) a_next[i] = PACKED8(a_bits, i) & a_mask; \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) b_next[i] = PACKED8(b_bits, i) & b_mask[i];

// Eight neighbouring input channels of a tap: slices are [output channel][tap][input channel].
void store8(int slice, int group, int row, int column, vec4 low, vec4 high) {
    int rows = c_out / groups;
    int in_group = c_in / groups;
    int vec8s = (in_group + 7) / 8;
    int tap = column / 8 / vec8s;
    if (row >= rows || tap >= TAPS) return;
    int c = column / 8 % vec8s * 8;
    int to = ((slice * c_out + group * rows + row) * TAPS + tap) * in_group + c;
    if (WHOLE) {
        slices4[to / 4] = low;
        slices4[to / 4 + 1] = high;
    } else {
        [[unroll]] for (int q = 0; q < 8; q++) {
            if (c + q < in_group) slices[to + q] = q < 4 ? low[q] : high[q - 4];
        }
    }
}

#define PLACE_OF(row, column) ivec2(block_row + (row), block_col + (column))
#define LOAD_ADDED(place, on) 0
#define STORE_OUTPUTS(place, on, left, low, high, added) store8(slice, group, place.x + (on), place.y, low, high);

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int rows = c_out / groups;
    int in_group = c_in / groups;
    int vec8s = (in_group + 7) / 8;
    int row_blocks = (rows + BM - 1) / BM;
    int col_blocks = (TAPS * vec8s * 8 + BN - 1) / BN;
    int index = int(flat_group());
    if (index >= per_box * groups * row_blocks * col_blocks) return;
    int block_row = index % row_blocks * BM;
    index /= row_blocks;
    int block_col = index % col_blocks * BN;
    index /= col_blocks;
    int group = index % groups;
    int slice = index / groups;

    int plane = od * oh * ow;
    int volume = d * h * w;
    int pixels = n * plane;
    int k_tiles = (pixels + BK - 1) / BK;
    int begin = first_of(slice, k_tiles);
    int end = first_of(slice + 1, k_tiles);

    int a_offset[A_LOADS];
    int a_last[A_LOADS];
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {
        int row = min(block_row / 8 + (lane + i * LANES) / BK, (rows - 1) / 8) * 8;
        a_offset[i] = (group * rows + row) * plane;
        a_last[i] = rows - 1 - row;
    }
    int b_offset[B_LOADS];
    int b_last[B_LOADS];
    int reach_x[B_LOADS];
    int reach_y[B_LOADS];
    int reach_z[B_LOADS];
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {
        int vec8 = min(block_col / 8 + (lane + i * LANES) / BK, TAPS * vec8s - 1);
        int tap = vec8 / vec8s;
        int c = vec8 % vec8s * 8;
        reach_x[i] = tap % KW * dw;
        reach_y[i] = tap / KW % KH * dh;
        reach_z[i] = DEEP ? tap / (KW * KH) * dd : 0;
        b_offset[i] = ((c * d + reach_z[i]) * h + reach_y[i]) * w + reach_x[i];
        b_last[i] = in_group - 1 - c;
    }

    // The pixel that this invocation loads next, its place, and how far the next k-tile is.
    int pixel = begin * BK + lane % BK;
    ivec4 box = max(ivec4(n, od, oh, ow), 1);
    ivec4 place = place_of(pixel, box);
    ivec4 step_by = place_of(BK, box);

    ACCUMULATOR sums[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) sums[i] = ACCUMULATOR(0.0);
    uint a_bits[A_LOADS * 8];
    uint b_bits[B_LOADS * 8];
    uint a_mask;
    uint b_mask[B_LOADS];
    uvec4 a_next[A_LOADS];
    uvec4 b_next[B_LOADS];
    if (begin < end) {
        K_LOOP(end - begin, true)
    }
    STORE_ACCUMULATORS(ivec2, PLACE_OF, int, LOAD_ADDED, STORE_OUTPUTS)
}
