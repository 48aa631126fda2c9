#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"
#include "texels.glsl"

// 1x1 without padding, from textures. Each invocation makes 4 * SLICES output channels x PX pixels that lie one
// workgroup apart, so that neighbouring lanes fetch neighbouring texels; the weights' place is the same in every lane.
const int ACCS = SLICES * PX;

void main() {
    int pixels = oh * ow;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (pixels + local * PX - 1) / (local * PX);
    int in_slices = (c_in + 3) / 4;
    int out_slices = (c_out + 3) / 4;
    int tiles = (out_slices + SLICES - 1) / SLICES;
    int index = int(flat_group());
    if (index >= n * tiles * blocks) return;
    int first = index % blocks * local * PX + int(gl_LocalInvocationID.x);
    int slice = index / blocks % tiles * SLICES;
    int image = index / blocks / tiles;

    ivec2 at[PX];
    [[unroll]] for (int p = 0; p < PX; p++) {
        int pixel = min(first + p * local, pixels - 1);
        at[p] = ivec2(pixel % ow * sw, pixel / ow * sh);
    }
    vec4 acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = vec4(0.0);
    for (int in_slice = 0; in_slice < in_slices; in_slice++) {
        vec4 v[PX];
        [[unroll]] for (int p = 0; p < PX; p++) v[p] = input_at(at[p].x, at[p].y, image * in_slices + in_slice);
        [[unroll]] for (int s = 0; s < SLICES; s++) {
            int row = min(slice + s, out_slices - 1);
            [[unroll]] for (int i = 0; i < 4; i++) {
                vec4 k = weights_at(4 * in_slice + i, row);
                [[unroll]] for (int p = 0; p < PX; p++) acc[s * PX + p] += k * v[p][i];
            }
        }
    }
    [[unroll]] for (int s = 0; s < SLICES; s++) {
        [[unroll]] for (int p = 0; p < PX; p++) {
            int pixel = first + p * local;
            if (pixel < pixels) store_texel(acc[s * PX + p], image, 4 * (slice + s), pixel);
        }
    }
}
