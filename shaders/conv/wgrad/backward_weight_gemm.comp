#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "backward_weight.glsl"
#include "backward_weight_pixels.glsl"

// Implicit GEMM of each group: (output channels) x (input channels and taps), summed over images and pixels of dy. Both
// operands lie along the pixels, so that neighbouring lanes load neighbouring pixels, and k-tiles of BK pixels are
// transposed as they go to shared memory; a pixel's place is worked out once for all rows and columns that a lane
// loads. VEC4: each pixel of dy meets the same pixel of x and nothing else, and both are loaded by vec4. BY_CHANNEL: so
// it is, and both lie as [group][pixel][channel of the group, to whole vec4], one line of pixels in all: vec4 of
// neighbouring channels go to shared memory as they are. A workgroup makes BM x BN outputs of one slice; each invocation
// holds TM x TN of them as blocks of 4 x 4 that lie BM / (TM / 4) rows and BN / (TN / 4) columns apart, and stores rows
// of four by vec4 where those of dw are whole ones (Y_VEC4). Local size is (BM / TM) * (BN / TN), a multiple of BK. With
// two BUFFERS the next k-tile is stored while others still multiply the last one, see gemm_tile.glsl.
const int TAPS = KD * KH * KW;
const int TM4 = TM / 4;
const int TN4 = TN / 4;
const int LANES_M = BM / TM;
const int LANES_N = BN / TN;
const int LANES = LANES_M * LANES_N;
const int WIDE = VEC4 || BY_CHANNEL ? 4 : 1;  // pixels of a load, or channels
const int LOADS_K = BK / WIDE;                // loads that a k-tile of a row or a column takes
const int STEP = LANES / LOADS_K;             // rows or columns between two loads of an invocation
const int A_STEP = LANES / (BM / 4);          // BY_CHANNEL: pixels between two loads
const int B_STEP = LANES / (BN / 4);
const int A_LOADS = BY_CHANNEL ? (BK + A_STEP - 1) / A_STEP : (BM + STEP - 1) / STEP;
const int B_LOADS = BY_CHANNEL ? (BK + B_STEP - 1) / B_STEP : (BN + STEP - 1) / STEP;
const int A_REST = LANES % (BM / 4) + BK % A_STEP;  // BY_CHANNEL: 0 where all loads are of the k-tile
const int B_REST = LANES % (BN / 4) + BK % B_STEP;
const int ACCS = TM * TN4;
// One vec4 more than a row has: the lanes of a subgroup store to different banks.
const int A_ROW = BM / 4 + 1;
const int B_ROW = BN / 4 + 1;

shared vec4 a_tile[BUFFERS * BK * A_ROW];
shared vec4 b_tile[BUFFERS * BK * B_ROW];

// A k-tile into registers, and on to where the next one is. These are macros since arrays that a function returns leave
// the registers.
#define LOAD_CHANNELS                                                                                   \
    {                                                                                                   \
        [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                  \
            bool in_tile = BK % A_STEP == 0 || a_k + i * A_STEP < BK;                                   \
            bool ok = a_inside && in_tile && pixel + a_k + i * A_STEP < pixels;                         \
            vec4 v = ok ? LOAD4(dy4, ok ? a_from + i * A_STEP * a_line : 0) : vec4(0.0);                \
            [[unroll]] for (int q = 0; q < WIDE; q++) a_next[i * WIDE + q] = v[q];                      \
        }                                                                                               \
        [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                  \
            bool in_tile = BK % B_STEP == 0 || b_k + i * B_STEP < BK;                                   \
            bool ok = b_inside && in_tile && pixel + b_k + i * B_STEP < pixels;                         \
            vec4 v = ok ? LOAD4(x4, ok ? b_from + i * B_STEP * b_line : 0) : vec4(0.0);                 \
            [[unroll]] for (int q = 0; q < WIDE; q++) b_next[i * WIDE + q] = v[q];                      \
        }                                                                                               \
        pixel += BK;                                                                                    \
        a_from += BK * a_line;                                                                          \
        b_from += BK * b_line;                                                                          \
    }
#define LOAD_PIXELS                                                                                \
    {                                                                                              \
        bool inside = pixel < pixels;                                                              \
        int ox = first.w + place.w;                                                                \
        int oy = first.z + place.z;                                                                \
        int oz = DEEP ? first.y + place.y : 0;                                                     \
        int image = first.x + place.x;                                                             \
        int a_at = (image * c_out + group * rows) * plane + (oz * oh + oy) * ow + ox;              \
        int b_first = (image * c_in + group * in_group) * d;                                       \
        if (VEC4) {                                                                                \
            [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                         \
                int row = block_row + load_row + i * STEP;                                         \
                bool ok = inside && row < rows && (BM % STEP == 0 || load_row + i * STEP < BM);    \
                vec4 v = ok ? LOAD4(dy4, ok ? (a_at + row * plane) / 4 : 0) : vec4(0.0);           \
                [[unroll]] for (int q = 0; q < WIDE; q++) a_next[i * WIDE + q] = v[q];             \
            }                                                                                      \
            int b_at = b_first * h * w + ox;                                                       \
            [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                         \
                bool ok = inside && (BN % STEP == 0 || load_row + i * STEP < BN);                  \
                vec4 v = ok ? LOAD4(x4, ok ? (b_at + offset[i]) / 4 : 0) : vec4(0.0);              \
                [[unroll]] for (int q = 0; q < WIDE; q++) b_next[i * WIDE + q] = v[q];             \
            }                                                                                      \
        } else {                                                                                   \
            [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                         \
                int row = block_row + load_row + i * STEP;                                         \
                bool ok = inside && row < rows && (BM % STEP == 0 || load_row + i * STEP < BM);    \
                a_next[i] = ok ? LOAD(dy, ok ? a_at + row * plane : 0) : 0.0;                      \
            }                                                                                      \
            int ix = ox * sw - pl;                                                                 \
            int iy = oy * sh - pt;                                                                 \
            int iz = DEEP ? oz * sd - pf : 0;                                                      \
            int b_at = ((b_first + iz) * h + iy) * w + ix;                                         \
            [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                         \
                bool ok = inside && (BN % STEP == 0 || load_row + i * STEP < BN);                  \
                if (PADDED) {                                                                      \
                    ok = ok && uint(iy + reach_y[i]) < uint(h) && uint(ix + reach_x[i]) < uint(w); \
                    if (DEEP) ok = ok && uint(iz + reach_z[i]) < uint(d);                          \
                }                                                                                  \
                b_next[i] = ok ? LOAD(x, ok ? b_at + offset[i] : 0) : 0.0;                         \
            }                                                                                      \
        }                                                                                          \
        pixel += BK;                                                                               \
        place = moved(place, step_by, box);                                                        \
    }

// Without UNROLL a loop: compilers that load all of an unrolled k-tile at once run out of registers.
#define MULTIPLY_AT(k)                                                                              \
    {                                                                                               \
        vec4 v[TN4];                                                                                \
        [[unroll]] for (int j = 0; j < TN4; j++) v[j] = b_tile[b_from + (k) * B_ROW + j * LANES_N]; \
        [[unroll]] for (int i = 0; i < TM4; i++) {                                                  \
            vec4 u = a_tile[a_from + (k) * A_ROW + i * LANES_M];                                    \
            [[unroll]] for (int r = 0; r < 4; r++) {                                                \
                [[unroll]] for (int j = 0; j < TN4; j++) acc[(i * 4 + r) * TN4 + j] += u[r] * v[j]; \
            }                                                                                       \
        }                                                                                           \
    }
#define MULTIPLY_K_TILE(k_tile)                                                       \
    {                                                                                 \
        int a_from = (BUFFERS == 1 ? 0 : (k_tile) % 2 * BK * A_ROW) + lane / LANES_N; \
        int b_from = (BUFFERS == 1 ? 0 : (k_tile) % 2 * BK * B_ROW) + lane % LANES_N; \
        if (UNROLL) {                                                                 \
            [[unroll]] for (int k = 0; k < BK; k++) MULTIPLY_AT(k)                    \
        } else {                                                                      \
            [[dont_unroll]] for (int k = 0; k < BK; k++) MULTIPLY_AT(k)               \
        }                                                                             \
    }

#define STORE_PIXELS(k_tile)                                                                                        \
    {                                                                                                               \
        int a_to = (BUFFERS == 1 ? 0 : (k_tile) % 2 * BK * A_ROW) + load_k * A_ROW;                                 \
        int b_to = (BUFFERS == 1 ? 0 : (k_tile) % 2 * BK * B_ROW) + load_k * B_ROW;                                 \
        [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                              \
            int row = load_row + i * STEP;                                                                          \
            [[unroll]] for (int q = 0; q < WIDE; q++) {                                                             \
                if (BM % STEP == 0 || row < BM) a_tile[a_to + q * A_ROW + row / 4][row % 4] = a_next[i * WIDE + q]; \
            }                                                                                                       \
        }                                                                                                           \
        [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                              \
            int column = load_row + i * STEP;                                                                       \
            [[unroll]] for (int q = 0; q < WIDE; q++) {                                                             \
                if (BN % STEP == 0 || column < BN) {                                                                \
                    b_tile[b_to + q * B_ROW + column / 4][column % 4] = b_next[i * WIDE + q];                       \
                }                                                                                                   \
            }                                                                                                       \
        }                                                                                                           \
    }

#define STORE_CHANNELS(k_tile)                                                                          \
    {                                                                                                   \
        int a_to = (BUFFERS == 1 ? 0 : (k_tile) % 2 * BK * A_ROW) + a_k * A_ROW + lane % (BM / 4);      \
        int b_to = (BUFFERS == 1 ? 0 : (k_tile) % 2 * BK * B_ROW) + b_k * B_ROW + lane % (BN / 4);      \
        [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                  \
            vec4 v;                                                                                     \
            [[unroll]] for (int q = 0; q < WIDE; q++) v[q] = a_next[i * WIDE + q];                      \
            bool ok = a_k < A_STEP && (BK % A_STEP == 0 || a_k + i * A_STEP < BK);                      \
            if (A_REST == 0 || ok) a_tile[a_to + i * A_STEP * A_ROW] = v;                               \
        }                                                                                               \
        [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                  \
            vec4 v;                                                                                     \
            [[unroll]] for (int q = 0; q < WIDE; q++) v[q] = b_next[i * WIDE + q];                      \
            bool ok = b_k < B_STEP && (BK % B_STEP == 0 || b_k + i * B_STEP < BK);                      \
            if (B_REST == 0 || ok) b_tile[b_to + i * B_STEP * B_ROW] = v;                               \
        }                                                                                               \
    }
#define LOAD_K_TILE    \
    if (BY_CHANNEL) {  \
        LOAD_CHANNELS  \
    } else {           \
        LOAD_PIXELS    \
    }
#define STORE_K_TILE(k_tile)    \
    if (BY_CHANNEL) {           \
        STORE_CHANNELS(k_tile)  \
    } else {                    \
        STORE_PIXELS(k_tile)    \
    }

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int rows = c_out / groups;
    int in_group = c_in / groups;
    int columns = in_group * TAPS;
    int row_blocks = (rows + BM - 1) / BM;
    int col_blocks = (columns + BN - 1) / BN;
    int index = int(flat_group());
    if (index >= (BY_CHANNEL ? per_box : slice_count()) * groups * row_blocks * col_blocks) return;
    int block_row = index % row_blocks * BM;
    index /= row_blocks;
    int block_col = index % col_blocks * BN;
    index /= col_blocks;
    int group = index % groups;
    int slice = index / groups;

    ivec4 first, size;
    int in_box;
    if (BY_CHANNEL) {
        first = ivec4(0);
        size = ivec4(1, 1, 1, ow);
        in_box = slice;
    } else {
        box_of(slice, first, size, in_box);
    }
    int pixels = size.x * size.y * size.z * size.w;
    int k_tiles = (pixels + BK - 1) / BK;
    int begin = first_of(in_box, k_tiles);
    int end = first_of(in_box + 1, k_tiles);

    int load_k = BY_CHANNEL ? 0 : lane % LOADS_K * WIDE;  // BY_CHANNEL: a_k and b_k
    int load_row = lane / LOADS_K;
    int plane = od * oh * ow;
    int offset[B_LOADS];
    int reach_y[B_LOADS];
    int reach_x[B_LOADS];
    int reach_z[B_LOADS];
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {
        // Columns past the end repeat the last one and are not stored.
        int column = min(block_col + load_row + i * STEP, columns - 1);
        reach_x[i] = column % KW * dw;
        reach_y[i] = column / KW % KH * dh;
        reach_z[i] = DEEP ? column / (KW * KH) % KD * dd : 0;
        offset[i] = ((column / TAPS * d + reach_z[i]) * h + reach_y[i]) * w + reach_x[i];
    }

    // The place in the box of the pixel that this invocation loads next, and what a k-tile adds to it: VEC4 count a
    // plane as one row.
    int pixel = begin * BK + load_k;
    ivec4 box = max(VEC4 ? ivec4(size.x, 1, 1, plane) : size, 1);
    ivec4 place = place_of(pixel, box);
    ivec4 step_by = place_of(BK, box);

    // BY_CHANNEL: vec4 of a pixel, the first pixel that this invocation loads of a k-tile, and its vec4 there.
    int a_line = (rows + 3) / 4;
    int b_line = (in_group + 3) / 4;
    int a_k = 0;
    int b_k = 0;
    int a_from = 0;
    int b_from = 0;
    bool a_inside = false;
    bool b_inside = false;
    if (BY_CHANNEL) {
        a_k = lane / (BM / 4);
        b_k = lane / (BN / 4);
        int a_column = block_row / 4 + lane % (BM / 4);
        int b_column = block_col / 4 + lane % (BN / 4);
        a_inside = a_column < a_line && a_k < A_STEP;
        b_inside = b_column < b_line && b_k < B_STEP;
        a_from = (group * ow + begin * BK + a_k) * a_line + a_column;
        b_from = (group * ow + begin * BK + b_k) * b_line + b_column;
    }

    float a_next[A_LOADS * WIDE];
    float b_next[B_LOADS * WIDE];
    vec4 acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = vec4(0.0);

    // In the loop the next k-tile is on its way while one is multiplied, and nothing branches: compilers then mix both.
    if (begin < end) {
        LOAD_K_TILE
        STORE_K_TILE(begin)
        barrier();
        for (int k_tile = begin + 1; k_tile < end; k_tile++) {
            LOAD_K_TILE
            MULTIPLY_K_TILE(k_tile - 1)
            if (BUFFERS == 1) barrier();
            STORE_K_TILE(k_tile)
            barrier();
        }
        MULTIPLY_K_TILE(end - 1)
    }

    int total = c_out * columns;
    [[unroll]] for (int i = 0; i < TM; i++) {
        int row = block_row + (i / 4 * LANES_M + lane / LANES_N) * 4 + i % 4;
        [[unroll]] for (int j = 0; j < TN4; j++) {
            int column = block_col + (j * LANES_N + lane % LANES_N) * 4;
            int to = (group * rows + row) * columns + column;
            if (Y_VEC4 && STORES_VEC4) {
                if (row < rows && column < columns) STORE_VEC4(slice, to, total, acc[i * TN4 + j])
            } else {
                [[unroll]] for (int c = 0; c < 4; c++) {
                    if (row < rows && column + c < columns) store(slice, to + c, total, acc[i * TN4 + j][c]);
                }
            }
        }
    }
}
