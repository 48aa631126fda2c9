#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef HALF_MATH
#define WIDE 4
#endif
#define F16_DEPTH_COUNTED
#include "products.glsl"
#include "conv2d.glsl"

// 1x1 without padding: for each group a GEMM of (c_out x c_in) by (c_in x pixels). Each invocation makes CO output
// channels x PX pixels that lie one workgroup apart, so that neighbouring lanes read neighbouring pixels; weight
// is packed [group][c_out / CO][c_in][CO] (pack_tiles.comp) and its address is the same in every lane.
const int ACCS = CO / WIDE * PX;

void main() {
    int pixels = oh * ow;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (pixels + local * PX - 1) / (local * PX);
    int in_group = c_in / groups;
    int out_group = c_out / groups;
    int co_tiles = (out_group + CO - 1) / CO;
    int index = int(flat_group());
    if (index >= n * groups * co_tiles * blocks) return;
    int block = index % blocks;
    index /= blocks;
    int co_tile = index % co_tiles;
    index /= co_tiles;
    int group = index % groups;
    int image = index / groups;

    int first = block * local * PX + int(gl_LocalInvocationID.x);
    int source[PX];
    [[unroll]] for (int p = 0; p < PX; p++) {
        int pixel = min(first + p * local, pixels - 1);
        source[p] = (image * c_in + group * in_group) * h * w + pixel / ow * sh * w + pixel % ow * sw;
    }
    SUMS acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = SUMS(0.0);
    BEGIN_F16_SUMS(REALS, ACCS)
    BEGIN_F16_DEPTH
    int tap = (group * co_tiles + co_tile) * in_group * CO;
    int plane = 0;
    for (int ci = 0; ci < in_group; ci++) {
        REAL v[PX];
        [[unroll]] for (int p = 0; p < PX; p++) v[p] = LOAD_REAL(x, source[p] + plane);
        [[unroll]] for (int c = 0; c < CO / WIDE; c++) {
            REALS k = LOAD_REALS(weight, tap + c * WIDE);
            [[unroll]] for (int p = 0; p < PX; p++) PARTIAL[c * PX + p] += k * v[p];
        }
        COUNT_F16_DEPTH(ACCS)
        tap += CO;
        plane += h * w;
    }
    FLUSH_F16_SUMS(REALS, SUMS, ACCS)
    [[unroll]] for (int c = 0; c < CO; c++) {
        int co = co_tile * CO + c;
        if (co < out_group) {
            Channel channel = channel_of(group * out_group + co);
            int out_plane = (image * c_out + group * out_group + co) * pixels;
            [[unroll]] for (int p = 0; p < PX; p++) {
                int pixel = first + p * local;
                int to = out_plane + pixel;
                float sum = ONE_OF(acc[c / WIDE * PX + p], c % WIDE);
                if (pixel < pixels) STORE_Y(y, to, finish(sum, channel, residual_at(to)));
            }
        }
    }
}
