#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"

// Outputs one stride apart form a phase: the same taps reach all of them, and within a phase neighbouring outputs
// take neighbouring inputs, as in a convolution of stride 1. With g = gcd(stride, dilation) and S = stride / g, the
// taps of a phase are k0, k0 + S, ... for one k0 below S, and from tap to tap the input steps back by dilation / g.
// Each invocation makes CO output channels x PX outputs of a row of a phase; the SPAN inputs are loaded once for all
// taps and channels. Weight is packed [group][c_out / CO][c_in][kh][kw][CO] (pack_tiles.comp) and its address is the
// same in every lane. One dispatch makes the phases along x that have the same number of TAPS; none where k0 is beyond
// the kernel, and what is left is the bias.
const int SPAN = TAPS > 0 ? PX + (TAPS - 1) * STEP_W : 1;
const int ACCS = CO * PX;

// The first output of the phase of a tap.
int first_output(int tap, int d, int s, int before) { return (tap * (d % s) % s + s - before % s) % s; }

void main() {
    int columns = ((ow + sw - 1) / sw + PX - 1) / PX;
    int rows = (oh + sh - 1) / sh;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (rows * columns + local - 1) / local;
    int out_group = c_out / groups;
    int in_group = c_in / groups;
    int co_tiles = (out_group + CO - 1) / CO;
    int index = int(flat_group());
    if (index >= n * groups * co_tiles * TAP_STEP_H * PHASES * blocks) return;
    int item = index % blocks * local + int(gl_LocalInvocationID.x);
    index /= blocks;
    int kx0 = FIRST + index % PHASES;
    index /= PHASES;
    int ky0 = index % TAP_STEP_H;
    index /= TAP_STEP_H;
    int group_tile = index % (groups * co_tiles);
    int group = group_tile / co_tiles;
    int image = index / (groups * co_tiles);

    int oy0 = first_output(ky0, dh, sh, pt);
    int ox0 = first_output(kx0, dw, sw, pl);
    int at_row = item / columns;
    int at_col = item % columns * PX;
    int oy = oy0 + at_row * sh;
    bool inside = item < rows * columns && oy < oh;
    int iy0 = (oy0 + pt - ky0 * dh) / sh + at_row;
    int ix0 = (ox0 + pl - kx0 * dw) / sw + at_col - (TAPS - 1) * STEP_W;
    int taps_y = TAPS > 0 && ky0 < kh ? (kh - ky0 - 1) / TAP_STEP_H + 1 : 0;
    int channels = taps_y > 0 ? in_group : 0;

    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    int plane = group_tile * in_group * kh;
    for (int ci = 0; ci < channels; ci++) {
        int x_plane = (image * c_in + group * in_group + ci) * h;
        for (int ty = 0; ty < taps_y; ty++) {
            int iy = iy0 - ty * STEP_H;
            bool row_inside = inside && iy >= 0 && iy < h;
            int row = (x_plane + iy) * w + ix0;
            float v[SPAN];
            [[unroll]] for (int i = 0; i < SPAN; i++) {
                bool ok = row_inside && ix0 + i >= 0 && ix0 + i < w;
                v[i] = ok ? LOAD(x, ok ? row + i : 0) : 0.0;
            }
            int tap = ((plane + ky0 + ty * TAP_STEP_H) * kw + kx0) * CO;
            [[unroll]] for (int tx = 0; tx < TAPS; tx++) {
                [[unroll]] for (int c = 0; c < CO; c++) {
                    float k = LOAD(weight, tap + tx * TAP_STEP_W * CO + c);
                    [[unroll]] for (int p = 0; p < PX; p++) acc[c * PX + p] += k * v[p + (TAPS - 1 - tx) * STEP_W];
                }
            }
        }
        plane += kh;
    }
    if (!inside) return;
    [[unroll]] for (int c = 0; c < CO; c++) {
        int co = group_tile % co_tiles * CO + c;
        if (co < out_group) {
            co += group * out_group;
            Channel channel = channel_of(co);
            int out_row = ((image * c_out + co) * oh + oy) * ow;
            [[unroll]] for (int p = 0; p < PX; p++) {
                int ox = ox0 + (at_col + p) * sw;
                if (ox < ow) STORE(y, out_row + ox, finish(acc[c * PX + p], channel));
            }
        }
    }
}
