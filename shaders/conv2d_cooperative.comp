#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"
#include "cooperative.glsl"

// Implicit GEMM by cooperative matrices: (c_out per group) x (pixels of all images) = (c_out x K) by (K x pixels), K = taps
// x channels (conv2d_gemm.comp has the same in f32). Weights are packed [group][c_out / BM][kh][kw][c_in up to BK][BM]
// (pack_tiles.comp), zeros beyond both ends; LINEAR leaves channels and taps in the order of w. Slices of the input are
// gathered pixel by pixel, eight channels of one by a lane, so that its neighbours read neighbouring pixels; LAST: they are
// read as words of eight from a copy that has channels last (channels_last.comp); or, where the input is a matrix as it
// lies (B_ROW is 0: 1x1, stride 1, no padding, planes of whole eights), eight pixels by a load.
layout(constant_id = 5) const bool LINEAR = false;
layout(constant_id = 18) const bool Y_WIDE = false;
layout(constant_id = 19) const int KH = 3;
layout(constant_id = 20) const int KW = 3;
layout(constant_id = 21) const bool LAST = false;

layout(set = 0, binding = 0) readonly restrict buffer X8 { uvec4 x8[]; };
layout(set = 0, binding = 1) readonly restrict buffer W8 { uvec4 weight8[]; };
layout(set = 0, binding = 3) WRITEONLY restrict buffer Y8 { uvec4 y8[]; };

// Gathered loads are numbered pixel first.
#define AT_A ALONG_A
#define AT_B(index) (B_ROW == 1 && !LAST ? (index) % BN * B_LINE + (index) / BN : ALONG_B(index))

// A row that no tap brings inside.
const int OUTSIDE = -(1 << 30);

// Eight outputs of channel ``row`` of the group, for the pixels from ``pixel`` on.
void store8(int group, int row, int pixel, vec4 low, vec4 high) {
    int out_group = c_out / groups;
    int plane = oh * ow;
    if (row >= out_group || pixel >= n * plane) return;
    int c = group * out_group + row;
    Channel channel = channel_of(c);
    int to = (pixel / plane * c_out + c) * plane + pixel % plane;
    float value[8];
    [[unroll]] for (int q = 0; q < 8; q++) {
        int p = pixel + q;
        bool inside = Y_WIDE || p < n * plane;
        int at = Y_WIDE ? to + q : inside ? (p / plane * c_out + c) * plane + p % plane : to;
        value[q] = finish(q < 4 ? low[q] : high[q - 4], channel, residual_at(at));
        if (!Y_WIDE && inside) STORE_Y(y, at, value[q]);
    }
    if (Y_WIDE) {
        y8[to / 8] = to_bits8(vec4(value[0], value[1], value[2], value[3]), vec4(value[4], value[5], value[6], value[7]));
    }
}

#define STORE8(row, col, low, high) store8(group, block_row * BM + (row), block_col * BN + (col), low, high)

// Single elements are put together only when they are there.
#define GATHERED                                                                      \
    if (B_ROW == 1 && !LAST) {                                                        \
        [[unroll]] for (int i = 0; i < B_LOADS; i++) b_next[i] = EIGHT(b_bits, i); \
    }

// Slice ``step`` into registers; ky, kx and k0 say where it begins.
#define LOAD_SLICE(step)                                                                                        \
    [[unroll]] for (int i = 0; i < A_LOADS; i++) {                                                              \
        int index = lane + i * LANES;                                                                           \
        a_next[i] = A_COUNT % LANES == 0 || index < A_COUNT ? weight8[a_from + (step) * A_COUNT + index] : uvec4(0u); \
    }                                                                                                           \
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {                                                              \
        int index = lane + i * LANES;                                                                           \
        if (B_ROW == 0) {                                                                                       \
            bool ok = k0 + index / B_EIGHTS < depth && (B_COUNT % LANES == 0 || index < B_COUNT);               \
            b_next[i] = ok ? x8[b_at[i] + (step) * b_step] : uvec4(0u);                                         \
        } else if (LAST) {                                                                                      \
            bool ok = uint(b_y[i] + ky * dh) < uint(h) && uint(b_x[i] + kx * dw) < uint(w);                     \
            ok = ok && k0 + index % B_EIGHTS * 8 < depth && (B_COUNT % LANES == 0 || index < B_COUNT);          \
            b_next[i] = ok ? x8[b_at[i] + (ky * dh * w + kx * dw) * all_eights + k0 / 8] : uvec4(0u);           \
        } else {                                                                                                \
            int k = k0 + index / BN * 8;                                                                        \
            int top = iy0 + (LINEAR ? 0 : ky * dh);                                                             \
            int left = ix0 + (LINEAR ? 0 : kx * dw);                                                            \
            int from = origin + (LINEAR ? 0 : ky * dh * w + kx * dw) + k * h * w;                               \
            bool tap_ok = inside && top >= 0 && top < h && left >= 0 && left < w;                               \
            [[unroll]] for (int q = 0; q < 8; q++) {                                                            \
                int at = from + q * h * w;                                                                      \
                if (LINEAR) {                                                                                   \
                    int y_tap = (k + q) / KW % KH * dh;                                                         \
                    int x_tap = (k + q) % KW * dw;                                                              \
                    at = origin + ((k + q) / (KH * KW) * h + y_tap) * w + x_tap;                                \
                    tap_ok = top + y_tap >= 0 && top + y_tap < h && left + x_tap >= 0 && left + x_tap < w && inside; \
                }                                                                                               \
                b_bits[i * 8 + q] = tap_ok && k + q < depth ? BITS_AT(x, at) : 0u;                              \
            }                                                                                                   \
        }                                                                                                       \
    }                                                                                                           \
    k0 += BK;                                                                                                   \
    if (!LINEAR && k0 >= depth) {                                                                               \
        k0 = 0;                                                                                                 \
        if (++kx == KW) {                                                                                       \
            kx = 0;                                                                                             \
            ky++;                                                                                               \
        }                                                                                                       \
    }

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int out_group = c_out / groups;
    int in_group = c_in / groups;
    int plane = oh * ow;
    int pixels = n * plane;
    int row_blocks = (out_group + BM - 1) / BM;
    int col_blocks = (pixels + BN - 1) / BN;
    int depth = LINEAR ? in_group * KH * KW : in_group;
    int chunks = (depth + BK - 1) / BK;
    int steps = LINEAR ? chunks : KH * KW * chunks;

    int index = int(flat_group());
    if (index >= groups * row_blocks * col_blocks) return;
    int block_row = index % row_blocks;
    index /= row_blocks;
    int block_col = index % col_blocks;
    int group = index / col_blocks;

    // The pixel that this invocation gathers, and where its window begins.
    int pixel = block_col * BN + lane % BN;
    bool inside = pixel < pixels;
    int iy0 = pixel % plane / ow * sh - pt;
    int ix0 = pixel % plane % ow * sw - pl;
    int origin = (pixel / plane * c_in + group * in_group) * h * w + iy0 * w + ix0;
    int a_from = (group * row_blocks + block_row) * steps * A_COUNT;
    int ky = 0;
    int kx = 0;
    int k0 = 0;

    SUMS sums[ROWS * COLUMNS];
    [[unroll]] for (int i = 0; i < ROWS * COLUMNS; i++) sums[i] = SUMS(0.0);
    uvec4 a_next[A_LOADS];
    uvec4 b_next[B_LOADS];
    uint b_bits[B_LOADS * 8];
    int b_at[B_LOADS];
    int b_step = BK * plane / 8;
    int b_y[B_LOADS];
    int b_x[B_LOADS];
    int eights = (in_group + 7) / 8;
    int all_eights = groups * eights;
    [[unroll]] for (int i = 0; i < B_LOADS; i++) {
        int eight = lane + i * LANES;
        if (LAST) {
            int p = block_col * BN + eight / B_EIGHTS;
            b_y[i] = p < pixels ? p % plane / ow * sh - pt : OUTSIDE;
            b_x[i] = p % plane % ow * sw - pl;
            b_at[i] = ((p / plane * h + b_y[i]) * w + b_x[i]) * all_eights + group * eights + eight % B_EIGHTS;
        } else {
            // Past the last pixel the last ones are read again: those sums are not stored.
            int p = min(block_col * BN + eight % B_EIGHTS * 8, pixels - 8);
            b_at[i] = ((p / plane * c_in + group * in_group + eight / B_EIGHTS) * plane + p % plane) / 8;
        }
    }
    MULTIPLY_SLICES(steps)
    STORE_SUMS(STORE8)
}
