#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"

// Sliding window for groups == 1: each invocation makes CO output channels x PX neighbouring output columns. The
// SPAN inputs of a row are loaded once for all taps and channels; weight is packed [c_out / CO][c_in][kh][kw][CO]
// (pack_tiles.comp) and its address is the same in every lane.
layout(constant_id = 5) const int CO = 8;
layout(constant_id = 6) const int PX = 8;
layout(constant_id = 7) const int KW = 3;
layout(constant_id = 8) const int SW = 1;
layout(constant_id = 9) const int DW = 1;
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const int ACCS = CO * PX;

void main() {
    int columns = (ow + PX - 1) / PX;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (oh * columns + local - 1) / local;
    int co_tiles = (c_out + CO - 1) / CO;
    int group = int(flat_group());
    if (group >= n * co_tiles * blocks) return;
    int block = group % blocks;
    int co_tile = group / blocks % co_tiles;
    int image = group / blocks / co_tiles;

    int unit = block * local + int(gl_LocalInvocationID.x);
    bool inside = unit < oh * columns;
    int oy = unit / columns;
    int ox0 = unit % columns * PX;
    int iy0 = oy * sh - pt;
    int ix0 = ox0 * SW - pl;

    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    int tap = co_tile * c_in * kh * KW * CO;
    for (int ci = 0; ci < c_in; ci++) {
        for (int ky = 0; ky < kh; ky++) {
            int iy = iy0 + ky * dh;
            bool row_inside = inside && iy >= 0 && iy < h;
            int row = ((image * c_in + ci) * h + iy) * w + ix0;
            float v[SPAN];
            [[unroll]] for (int i = 0; i < SPAN; i++) {
                bool ok = row_inside && ix0 + i >= 0 && ix0 + i < w;
                v[i] = ok ? TO_F32(x[ok ? row + i : 0]) : 0.0;
            }
            [[unroll]] for (int kx = 0; kx < KW; kx++) {
                [[unroll]] for (int c = 0; c < CO; c++) {
                    float k = TO_F32(weight[tap + kx * CO + c]);
                    [[unroll]] for (int p = 0; p < PX; p++) acc[c * PX + p] += k * v[p * SW + kx * DW];
                }
            }
            tap += KW * CO;
        }
    }
    if (!inside) return;
    [[unroll]] for (int c = 0; c < CO; c++) {
        int co = co_tile * CO + c;
        if (co < c_out) {
            float offset = bias_of(co);
            int out_row = ((image * c_out + co) * oh + oy) * ow + ox0;
            [[unroll]] for (int p = 0; p < PX; p++) {
                if (ox0 + p < ow) y[out_row + p] = finish(acc[c * PX + p] + offset);
            }
        }
    }
}
