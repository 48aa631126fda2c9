#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"
#include "texels.glsl"

// One group, from textures. Each invocation makes 4 * SLICES output channels x PX neighbouring outputs of a row; what it
// fetches again for the next tap comes from the texture cache. The weights' place is the same in every lane.
const int ACCS = SLICES * PX;

void main() {
    int columns = (ow + PX - 1) / PX;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (oh * columns + local - 1) / local;
    int in_slices = (c_in + 3) / 4;
    int out_slices = (c_out + 3) / 4;
    int tiles = (out_slices + SLICES - 1) / SLICES;
    int index = int(flat_group());
    if (index >= n * tiles * blocks) return;
    int item = index % blocks * local + int(gl_LocalInvocationID.x);
    if (item >= oh * columns) return;
    int slice = index / blocks % tiles * SLICES;
    int image = index / blocks / tiles;
    int oy = item / columns;
    int ox = item % columns * PX;

    vec4 acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = vec4(0.0);
    for (int ky = 0; ky < kh; ky++) {
        int iy = oy * sh - pt + ky * dh;
        if (iy < 0 || iy >= h) continue;
        for (int kx = 0; kx < kw; kx++) {
            int ix = ox * sw - pl + kx * dw;
            for (int in_slice = 0; in_slice < in_slices; in_slice++) {
                vec4 v[PX];
                [[unroll]] for (int p = 0; p < PX; p++) {
                    int column = ix + p * sw;
                    bool inside = column >= 0 && column < w;
                    v[p] = inside ? input_at(column, iy, image * in_slices + in_slice) : vec4(0.0);
                }
                [[unroll]] for (int s = 0; s < SLICES; s++) {
                    int row = (min(slice + s, out_slices - 1) * kh + ky) * kw + kx;
                    [[unroll]] for (int i = 0; i < 4; i++) {
                        vec4 k = weights_at(4 * in_slice + i, row);
                        [[unroll]] for (int p = 0; p < PX; p++) acc[s * PX + p] += k * v[p][i];
                    }
                }
            }
        }
    }
    [[unroll]] for (int s = 0; s < SLICES; s++) {
        [[unroll]] for (int p = 0; p < PX; p++) {
            if (ox + p < ow) store_texel(acc[s * PX + p], image, 4 * (slice + s), oy * ow + ox + p);
        }
    }
}
