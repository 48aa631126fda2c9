#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef HALF_MATH
#define WIDE 4
#endif
#define F16_DEPTH_COUNTED
#include "products.glsl"
#include "conv2d.glsl"

// Sliding window: each invocation makes CO output channels of a group x PX neighbouring output columns. The SPAN
// inputs of a row are loaded once for all taps and channels; weight is packed [group][c_out / CO][c_in][kh][kw][CO]
// (pack_tiles.comp) and its address is the same in every lane.
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const int ACCS = CO / WIDE * PX;

void main() {
    int columns = (ow + PX - 1) / PX;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (oh * columns + local - 1) / local;
    int out_group = c_out / groups;
    int in_group = c_in / groups;
    int co_tiles = (out_group + CO - 1) / CO;
    int index = int(flat_group());
    if (index >= n * groups * co_tiles * blocks) return;
    int block = index % blocks;
    int tile = index / blocks % (groups * co_tiles);
    int image = index / blocks / (groups * co_tiles);
    int group = tile / co_tiles;

    int item = block * local + int(gl_LocalInvocationID.x);
    bool inside = item < oh * columns;
    int oy = item / columns;
    int ox0 = item % columns * PX;
    int iy0 = oy * sh - pt;
    int ix0 = ox0 * SW - pl;

    SUMS acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = SUMS(0.0);
    BEGIN_F16_SUMS(REALS, ACCS)
    BEGIN_F16_DEPTH
    int tap = tile * in_group * kh * KW * CO;
    int plane = image * c_in + group * in_group;
    for (int ci = 0; ci < in_group; ci++) {
        for (int ky = 0; ky < kh; ky++) {
            int iy = iy0 + ky * dh;
            bool row_inside = inside && iy >= 0 && iy < h;
            int row = ((plane + ci) * h + iy) * w + ix0;
            REAL v[SPAN];
            [[unroll]] for (int i = 0; i < SPAN; i++) {
                bool ok = row_inside && ix0 + i >= 0 && ix0 + i < w;
                v[i] = ok ? LOAD_REAL(x, ok ? row + i : 0) : REAL(0.0);
            }
            [[unroll]] for (int kx = 0; kx < KW; kx++) {
                [[unroll]] for (int c = 0; c < CO / WIDE; c++) {
                    REALS k = LOAD_REALS(weight, tap + kx * CO + c * WIDE);
                    [[unroll]] for (int p = 0; p < PX; p++) PARTIAL[c * PX + p] += k * v[p * SW + kx * DW];
                }
            }
            tap += KW * CO;
            COUNT_F16_DEPTH(ACCS)
        }
    }
    FLUSH_F16_SUMS(REALS, SUMS, ACCS)
    if (!inside) return;
    [[unroll]] for (int c = 0; c < CO; c++) {
        int co = tile % co_tiles * CO + c;
        if (co < out_group) {
            co += group * out_group;
            Channel channel = channel_of(co);
            int out_row = ((image * c_out + co) * oh + oy) * ow + ox0;
            [[unroll]] for (int p = 0; p < PX; p++) {
                float sum = ONE_OF(acc[c / WIDE * PX + p], c % WIDE);
                if (ox0 + p < ow) STORE_Y(y, out_row + p, finish(sum, channel, residual_at(out_row + p)));
            }
        }
    }
}
