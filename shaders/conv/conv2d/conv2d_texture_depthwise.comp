#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"
#include "texels.glsl"

// As many output channels as input channels, each from its own, from textures. Each invocation makes four channels x PX
// neighbouring outputs of a row, from the texels of each input row that all its taps share.
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;

void main() {
    int columns = (ow + PX - 1) / PX;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (oh * columns + local - 1) / local;
    int slices = (c_in + 3) / 4;
    int index = int(flat_group());
    if (index >= n * slices * blocks) return;
    int item = index % blocks * local + int(gl_LocalInvocationID.x);
    if (item >= oh * columns) return;
    int slice = index / blocks % slices;
    int image = index / blocks / slices;
    int oy = item / columns;
    int ox = item % columns * PX;

    vec4 acc[PX];
    [[unroll]] for (int p = 0; p < PX; p++) acc[p] = vec4(0.0);
    for (int ky = 0; ky < kh; ky++) {
        int iy = oy * sh - pt + ky * dh;
        if (iy < 0 || iy >= h) continue;
        vec4 v[SPAN];
        [[unroll]] for (int i = 0; i < SPAN; i++) {
            int column = ox * SW - pl + i;
            bool inside = column >= 0 && column < w;
            v[i] = inside ? input_at(column, iy, image * slices + slice) : vec4(0.0);
        }
        [[unroll]] for (int kx = 0; kx < KW; kx++) {
            vec4 k = weights_at(ky * KW + kx, slice);
            [[unroll]] for (int p = 0; p < PX; p++) acc[p] += k * v[p * SW + kx * DW];
        }
    }
    [[unroll]] for (int p = 0; p < PX; p++) {
        if (ox + p < ow) store_texel(acc[p], image, 4 * slice, oy * ow + ox + p);
    }
}
