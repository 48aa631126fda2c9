#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifndef REDUCE
#define VEC4_RESIDUAL
#endif
#include "conv2d.glsl"
#include "shuffled.glsl"

// Sliding window by subgroups: each invocation makes CO output channels of a group x PX neighbouring output columns.
// The SPAN inputs of a row are loaded once for all taps and channels, by vec4 if X_VEC4 (rows are whole vec4, and so is
// what lies between two blocks of columns; LEFT is the padding). The CO * KW weights of a row of taps are loaded once
// for all lanes (shuffled.glsl) from [group][c_out / CO][c_in][kh][kw][CO] (pack_tiles.comp). With REDUCE what a
// subgroup's blocks of pixels come to is stored: [image][subgroup][channel]; PRODUCT stores the results too.
// One loop goes over the rows of taps of all input channels, ROWS an iteration; with 0, two nested ones. Those of a tile
// are padded with zeros to a multiple of PADDED_ROWS.
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const int SKIP = X_VEC4 ? (4 - LEFT % 4) % 4 : 0;  // inputs of the first vec4 that come before the first of the span
const int QUADS = X_VEC4 ? (SKIP + SPAN + 3) / 4 : 1;
const int ACCS = CO * PX;
const int TAPS = KW * CO;

#ifdef REDUCE
#define SUBGROUP_LANES SUBGROUP
#include "addends.glsl"
#include "reduced.glsl"
const int OWNED = (CO + SUBGROUP - 1) / SUBGROUP;
#endif

// A row of taps of an input channel is added to the sums: ``row`` is the place of its first input, in column ``ix0``,
// ``tap`` that of the lane's first weights.
void add_row(inout float acc[ACCS], bool row_inside, int row, int ix0, int width, int tap) {
    int lane = int(gl_SubgroupInvocationID);
    float v[SPAN];
    if (X_VEC4) {
        vec4 quad[QUADS];
        [[unroll]] for (int i = 0; i < QUADS; i++) {
            int ix = ix0 - SKIP + 4 * i;
            bool ok = row_inside && ix >= 0 && ix < width;
            quad[i] = ok ? LOAD4(x4, ok ? (row - SKIP) / 4 + i : 0) : vec4(0.0);
        }
        [[unroll]] for (int i = 0; i < SPAN; i++) v[i] = quad[(SKIP + i) / 4][(SKIP + i) % 4];
    } else {
        [[unroll]] for (int i = 0; i < SPAN; i++) {
            bool ok = row_inside && ix0 + i >= 0 && ix0 + i < width;
            v[i] = ok ? LOAD(x, ok ? row + i : 0) : 0.0;
        }
    }
    vec4 lane_vec4s[LANE_VEC4S(TAPS, SUBGROUP)];
    [[unroll]] for (int i = 0; i < LANE_VEC4S(TAPS, SUBGROUP); i++) {
        int at = i * SUBGROUP;
        lane_vec4s[i] = LOAD4(weight, at + SUBGROUP <= TAPS / 4 || at + lane < TAPS / 4 ? tap + at : tap - lane);
    }
    [[unroll]] for (int kx = 0; kx < KW; kx++) {
        [[unroll]] for (int c = 0; c < CO; c++) {
            float k = SHUFFLED(lane_vec4s, kx * CO + c, SUBGROUP);
            [[unroll]] for (int p = 0; p < PX; p++) acc[c * PX + p] += k * v[p * SW + kx * DW];
        }
    }
}

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

    int lane = int(gl_SubgroupInvocationID);
    int item = block * local + int(gl_SubgroupID) * SUBGROUP + lane;
    bool inside = item < oh * columns;
    int oy = item / columns;
    int ox0 = item % columns * PX;
    int iy0 = oy * sh - pt;
    int ix0 = ox0 * SW - LEFT;

    // Read here: lavapipe reads push constants anew at each use in a loop.
    int kernel_rows = kh, row_step = dh, height = h, width = w;
    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    int plane = image * c_in + group * in_group;
    int rows = in_group * kernel_rows;
    int tap = tile * ((rows + PADDED_ROWS - 1) / PADDED_ROWS * PADDED_ROWS) * TAPS / 4 + lane;
    if (ROWS == 0) {
        for (int ci = 0; ci < in_group; ci++) {
            for (int ky = 0; ky < kernel_rows; ky++) {
                int iy = iy0 + ky * row_step;
                bool row_inside = inside && iy >= 0 && iy < height;
                add_row(acc, row_inside, ((plane + ci) * height + iy) * width + ix0, ix0, width, tap);
                tap += TAPS / 4;
            }
        }
    } else {
        // One loop: lavapipe stores loop-carried values under a mask, in each iteration of each loop.
        int ky = 0, plane_row = plane * height;
        for (int first = 0; first < rows; first += ROWS) {
            [[unroll]] for (int i = 0; i < ROWS; i++) {
                int iy = iy0 + ky * row_step;
                bool row_inside = inside && first + i < rows && iy >= 0 && iy < height;
                add_row(acc, row_inside, (plane_row + iy) * width + ix0, ix0, width, tap);
                tap += TAPS / 4;
                ky++;
                plane_row += ky == kernel_rows ? height : 0;
                ky = ky == kernel_rows ? 0 : ky;
            }
        }
    }
#ifdef REDUCE
    int first_channel = tile % co_tiles * CO;
    int parts = blocks * int(gl_NumSubgroups);
    int part = block * int(gl_NumSubgroups) + int(gl_SubgroupID);
    int first_output = (TO_PARTS ? image * parts + part : image) * c_out + group * out_group;
    [[unroll]] for (int reduction = 0; reduction < REDUCTIONS; reduction++) {
        float mine[OWNED];  // of every SUBGROUP-th channel
        [[unroll]] for (int c = 0; c < CO; c++) {
            int co = group * out_group + min(first_channel + c, out_group - 1);
            Channel channel = channel_of(co);
            float total = nothing(reduction);
            [[unroll]] for (int p = 0; p < PX; p++) {
                bool there = inside && ox0 + p < ow;
                int to = there ? ((image * c_out + co) * oh + oy) * ow + ox0 + p : 0;
                float added = added_at(to, image, co, there ? oy * ow + ox0 + p : 0);
                float value = finished(acc[c * PX + p], channel, act_a, act_b, added);
                if (there) total = combined(reduction, total, term_of(reduction, value));
#ifdef PRODUCT
                if (reduction == 0 && there && first_channel + c < out_group) STORE(product, to, value);
#endif
            }
            total = over_lanes(reduction, total);
            if (lane == c % SUBGROUP) mine[c / SUBGROUP] = total;
        }
        [[unroll]] for (int i = 0; i < OWNED; i++) {
            int c = i * SUBGROUP + lane;
            int co = first_channel + c;
            if (c < CO && co < out_group) put(reduction, first_output + co, mine[i], divisor);
        }
    }
#else
    if (!inside) return;
    [[unroll]] for (int c = 0; c < CO; c++) {
        int co = tile % co_tiles * CO + c;
        if (co < out_group) {
            co += group * out_group;
            Channel channel = channel_of(co);
            int out_row = ((image * c_out + co) * oh + oy) * ow + ox0;
            // Two loops: drivers inline the whole activation wherever it is called, in branches that are never taken
            // too.
            if (Y_VEC4) {
                [[unroll]] for (int p = 0; p < PX; p += 4) {
                    if (ox0 + p < ow) {
                        vec4 values = residual4_at((out_row + p) / 4);
                        [[unroll]] for (int i = 0; i < 4; i++) {
                            values[i] = finish(acc[min(c * PX + p + i, ACCS - 1)], channel, values[i]);
                        }
                        STORE_Y4(y4, (out_row + p) / 4, values);
                    }
                }
            } else {
                [[unroll]] for (int p = 0; p < PX; p++) {
                    if (ox0 + p < ow) STORE_Y(y, out_row + p, finish(acc[c * PX + p], channel, residual_at(out_row + p)));
                }
            }
        }
    }
#endif
}
