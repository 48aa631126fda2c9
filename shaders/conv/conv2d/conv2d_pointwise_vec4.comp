#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"

// 1x1 of stride 1 without padding over planes of whole vec4: for each group a GEMM of (c_out x c_in) by (c_in x
// pixels). Each invocation makes CO output channels x QUADS vec4 of pixels that lie one workgroup apart, so that it loads
// and stores four pixels at once. weight is packed [group][c_out / CO][c_in][CO] (pack_tiles.comp), and read by vec4 at
// an address that is the same in every lane.
void main() {
    int quads = oh * ow / 4;
    int local = int(gl_WorkGroupSize.x);
    int blocks = (quads + local * QUADS - 1) / (local * QUADS);
    int in_group = c_in / groups;
    int out_group = c_out / groups;
    int co_tiles = (out_group + CO - 1) / CO;
    int index = int(flat_group());
    if (index >= n * groups * co_tiles * blocks) return;
    // Workgroups of one block of pixels lie next to each other: what one of them loads the others find in a cache.
    int co_tile = index % co_tiles;
    index /= co_tiles;
    int block = index % blocks;
    index /= blocks;
    int group = index % groups;
    int image = index / groups;

    int first = block * local * QUADS + int(gl_LocalInvocationID.x);
    int source[QUADS];
    [[unroll]] for (int q = 0; q < QUADS; q++) {
        source[q] = (image * c_in + group * in_group) * quads + min(first + q * local, quads - 1);
    }
    vec4 acc[CO * QUADS];
    [[unroll]] for (int i = 0; i < CO * QUADS; i++) acc[i] = vec4(0.0);
    int tap = (group * co_tiles + co_tile) * in_group * (CO / 4);
    int plane = 0;
    for (int ci = 0; ci < in_group; ci++) {
        vec4 v[QUADS];
        [[unroll]] for (int q = 0; q < QUADS; q++) v[q] = LOAD4(x, source[q] + plane);
        [[unroll]] for (int c = 0; c < CO; c += 4) {
            vec4 k = LOAD4(weight, tap + c / 4);
            [[unroll]] for (int j = 0; j < 4; j++) {
                [[unroll]] for (int q = 0; q < QUADS; q++) acc[(c + j) * QUADS + q] += k[j] * v[q];
            }
        }
        tap += CO / 4;
        plane += quads;
    }
    [[unroll]] for (int c = 0; c < CO; c++) {
        int co = co_tile * CO + c;
        if (co < out_group) {
            Channel channel = channel_of(group * out_group + co);
            int out_plane = (image * c_out + group * out_group + co) * quads;
            [[unroll]] for (int q = 0; q < QUADS; q++) {
                int quad = first + q * local;
                if (quad < quads) {
                    vec4 sums = acc[c * QUADS + q];
                    vec4 made;
                    [[unroll]] for (int j = 0; j < 4; j++) made[j] = finish(sums[j], channel, residual_at(4 * (out_plane + quad) + j));
                    STORE_Y4(y, out_plane + quad, made);
                }
            }
        }
    }
}
