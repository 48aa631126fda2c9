#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// WRITTEN outputs of a row are written as one.
#include "conv2d.glsl"

// Outputs fall into blocks of SH x SW. Each invocation makes all outputs of PX neighbouring blocks of CO output
// channels of a group: every input that it loads meets every tap, each tap at its place of a block, and rows of outputs
// are written whole. Weight is packed [group][c_out / CO][c_in][kh][kw][CO] (pack_tiles.comp), and its address is the
// same in every lane. With SHARED_LOADS the weights of an input channel are loaded once for all lanes (shuffled.glsl),
// with SHARED_MEMORY all of a tile's once for the workgroup: where they have 16 bits, that is also where they become
// f32.
#ifdef SHARED_LOADS
#include "shuffled.glsl"
#endif
const int RUN = PX * SW;  // outputs of a row of an invocation
// A tap k reaches place (k d - p) mod s of the block that lies floor((k d - p) / s) behind the input.
const int FIRST_H = -((PT + SH - 1) / SH);
const int FIRST_W = -((PL + SW - 1) / SW);
const int ROWS = ((KH - 1) * DH - PT - FIRST_H * SH) / SH + 1;
const int SPAN = PX + ((KW - 1) * DW - PL - FIRST_W * SW) / SW;
const int BACK = SPAN - PX;
const int ACCS = CO * SH * RUN;
const int TAPS4 = KH * KW * (CO / 4);
#ifdef SHARED_MEMORY
shared vec4 weights_of_tile[IN_GROUP * TAPS4];
#endif

void main() {
    int block_rows = (oh + SH - 1) / SH;
    int columns = (ow + RUN - 1) / RUN;
    int local = int(gl_WorkGroupSize.x);
    int item_blocks = (block_rows * columns + local - 1) / local;
    int out_group = c_out / groups;
    int in_group = c_in / groups;
    int co_tiles = (out_group + CO - 1) / CO;
    int index = int(flat_group());
    if (index >= n * groups * co_tiles * item_blocks) return;
#ifdef SHARED_LOADS
    int lane = int(gl_SubgroupInvocationID);
    int item = index % item_blocks * local + int(gl_SubgroupID) * SUBGROUP + lane;
#else
    int item = index % item_blocks * local + int(gl_LocalInvocationID.x);
#endif
    index /= item_blocks;
    int tile = index % (groups * co_tiles);
    int image = index / (groups * co_tiles);
    bool inside = item < block_rows * columns;  // lanes beyond take part in what all lanes do
    int by = item / columns;
    int bx = item % columns * PX;
    // The last row and the first column of inputs that reach the blocks.
    int iy0 = by - FIRST_H;
    int ix0 = bx - FIRST_W - BACK;

    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    int tap = tile * in_group * TAPS4;
#ifdef SHARED_MEMORY
    for (int i = int(gl_LocalInvocationID.x); i < IN_GROUP * TAPS4; i += local) {
        weights_of_tile[i] = LOAD4(weight, tap + i);
    }
    barrier();
    tap = 0;
#endif
    int x_plane = (image * c_in + tile / co_tiles * in_group) * h;
    for (int ci = 0; ci < in_group; ci++) {
#ifdef SHARED_LOADS
        vec4 lane_vec4s[LANE_VEC4S(4 * TAPS4, SUBGROUP)];
        [[unroll]] for (int i = 0; i < LANE_VEC4S(4 * TAPS4, SUBGROUP); i++) {
            lane_vec4s[i] = LOAD4(weight, tap + min(i * SUBGROUP + lane, TAPS4 - 1));
        }
#endif
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            int iy = iy0 - r;
            bool row_inside = inside && iy >= 0 && iy < h;
            int row = (x_plane + iy) * w + ix0;
            float v[SPAN];
            [[unroll]] for (int i = 0; i < SPAN; i++) {
                bool ok = row_inside && ix0 + i >= 0 && ix0 + i < w;
#ifdef SHARED_MEMORY
                v[i] = 0.0;
                if (ok) v[i] = LOAD(x, row + i);
#else
                v[i] = ok ? LOAD(x, ok ? row + i : 0) : 0.0;
#endif
            }
            [[unroll]] for (int ky = 0; ky < KH; ky++) {
                int ay = ky * DH - PT - FIRST_H * SH;
                if (ay / SH == r) {
                    [[unroll]] for (int kx = 0; kx < KW; kx++) {
                        int ax = kx * DW - PL - FIRST_W * SW;
                        [[unroll]] for (int c4 = 0; c4 < CO / 4; c4++) {
                            int t = (ky * KW + kx) * (CO / 4) + c4;
#ifdef SHARED_MEMORY
                            vec4 k4 = weights_of_tile[tap + t];
#elif !defined(SHARED_LOADS)
                            vec4 k4 = LOAD4(weight, tap + t);
#endif
                            [[unroll]] for (int c = 0; c < 4; c++) {
#ifdef SHARED_LOADS
                                float k = SHUFFLED(lane_vec4s, 4 * t + c, SUBGROUP);
#else
                                float k = k4[c];
#endif
                                [[unroll]] for (int p = 0; p < PX; p++) {
                                    int at = ((c4 * 4 + c) * SH + ay % SH) * RUN + p * SW + ax % SW;
                                    acc[at] += k * v[p + BACK - ax / SW];
                                }
                            }
                        }
                    }
                }
            }
        }
        tap += TAPS4;
        x_plane += h;
    }
    if (!inside) return;
    [[unroll]] for (int c = 0; c < CO; c++) {
        int co = tile % co_tiles * CO + c;
        if (co < out_group) {
            co += tile / co_tiles * out_group;
            Channel channel = channel_of(co);
            [[unroll]] for (int r = 0; r < SH; r++) {
                int oy = by * SH + r;
                int out_row = ((image * c_out + co) * oh + oy) * ow;
                [[unroll]] for (int i = 0; i < RUN; i += WRITTEN) {
                    int ox = bx * SW + i;
                    int at = (c * SH + r) * RUN + i;
                    if (oy < oh && ox < ow) {
#if WRITTEN == 4
                        STORE4(y, (out_row + ox) / 4, vec4(finish(acc[at], channel), finish(acc[at + 1], channel),
                                                           finish(acc[at + 2], channel), finish(acc[at + 3], channel)));
#elif WRITTEN == 2
                        STORE2(y, (out_row + ox) / 2, vec2(finish(acc[at], channel), finish(acc[at + 1], channel)));
#else
                        STORE(y, out_row + ox, finish(acc[at], channel));
#endif
                    }
                }
            }
        }
    }
}
