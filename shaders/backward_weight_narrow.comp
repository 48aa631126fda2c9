#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "backward_weight.glsl"

// Narrow groups on GPUs: a workgroup makes ROWS output channels by TAPS_Y x TAPS_X taps of one input channel. Its lanes
// share out the pixels, PX neighbours of a row at a time, and meet in a fixed tree in shared memory.
layout(constant_id = 7) const int ROWS = 1;
layout(constant_id = 8) const int PX = 4;
layout(constant_id = 9) const int TAPS_Y = 3;
layout(constant_id = 10) const int TAPS_X = 3;
layout(constant_id = 11) const int SW = 1;
layout(constant_id = 12) const int DW = 1;
layout(constant_id = 13) const int LANES = 128;  // a power of two
const int SPAN = (PX - 1) * SW + (TAPS_X - 1) * DW + 1;
const int TAPS = TAPS_Y * TAPS_X;
const int ACCS = ROWS * TAPS;

shared float sums[LANES];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int rows = c_out / groups;
    int in_group = c_in / groups;
    int row_tiles = (rows + ROWS - 1) / ROWS;
    int blocks_x = (kw + TAPS_X - 1) / TAPS_X;
    int blocks_y = (kh + TAPS_Y - 1) / TAPS_Y;
    int index = int(flat_group());
    if (index >= part_count() * row_tiles * c_in * kd * blocks_y * blocks_x) return;
    int kx = index % blocks_x * TAPS_X;
    index /= blocks_x;
    int ky = index % blocks_y * TAPS_Y;
    index /= blocks_y;
    int kz = index % kd;
    index /= kd;
    int row0 = index % row_tiles * ROWS;
    index /= row_tiles;
    int channel = index % c_in;
    int part = index / c_in;
    int group = channel / in_group;

    ivec4 first, size;
    int cut;
    box_of(part, first, size, cut);
    int chunks = (size.w + PX - 1) / PX;
    int count = size.x * size.y * size.z * chunks;
    int end = first_of(cut + 1, count);
    int plane = od * oh * ow;

    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    for (int at = first_of(cut, count) + lane; at < end; at += LANES) {
        int left = at;
        int ox = left % chunks * PX;
        left /= chunks;
        int pixels = min(PX, size.w - ox);
        ox += first.w;
        int oy = first.z + left % size.z;
        left /= size.z;
        int oz = first.y + left % size.y;
        int image = first.x + left / size.y;
        int iz = oz * sd + kz * dd - pf;
        int iy = oy * sh + ky * dh - pt;
        int ix = ox * SW + kx * DW - pl;
        bool plane_ok = uint(iz) < uint(d);
        int x_at = (((image * c_in + channel) * d + iz) * h + iy) * w + ix;
        int dy_at = (image * c_out + group * rows) * plane + (oz * oh + oy) * ow + ox;
        float u[ROWS * PX];
        [[unroll]] for (int m = 0; m < ROWS; m++) {
            [[unroll]] for (int q = 0; q < PX; q++) {
                bool ok = q < pixels && row0 + m < rows;
                u[m * PX + q] = ok ? TO_F32(dy[ok ? dy_at + (row0 + m) * plane + q : 0]) : 0.0;
            }
        }
        [[unroll]] for (int r = 0; r < TAPS_Y; r++) {
            bool line_ok = plane_ok && uint(iy + r * dh) < uint(h);
            float v[SPAN];
            [[unroll]] for (int i = 0; i < SPAN; i++) {
                bool ok = line_ok && uint(ix + i) < uint(w);
                v[i] = ok ? TO_F32(x[ok ? x_at + r * dh * w + i : 0]) : 0.0;
            }
            [[unroll]] for (int q = 0; q < PX; q++) {
                // A tap of a pixel that is not there may lie on an input that is no number.
                if (q < pixels) {
                    [[unroll]] for (int m = 0; m < ROWS; m++) {
                        [[unroll]] for (int t = 0; t < TAPS_X; t++) {
                            acc[m * TAPS + r * TAPS_X + t] += u[m * PX + q] * v[q * SW + t * DW];
                        }
                    }
                }
            }
        }
    }

    int columns = in_group * kd * kh * kw;
    int total = c_out * columns;
    int in_w = ((channel - group * in_group) * kd + kz) * kh * kw;
    [[unroll]] for (int i = 0; i < ACCS; i++) {
        sums[lane] = acc[i];
        barrier();
        for (int step = LANES / 2; step > 0; step /= 2) {
            if (lane < step) sums[lane] += sums[lane + step];
            barrier();
        }
        int row = row0 + i / TAPS;
        int y = ky + i % TAPS / TAPS_X;
        int t = kx + i % TAPS_X;
        if (lane == 0 && row < rows && y < kh && t < kw) {
            store(part, (group * rows + row) * columns + in_w + y * kw + t, total, sums[0]);
        }
        barrier();
    }
}
