#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "backward_weight.glsl"
#include "backward_weight_meet.glsl"

// Narrow groups on GPUs: a workgroup makes ROWS output channels by TAPS_Y x TAPS_X taps of one input channel. Its lanes
// share out the pixels, PX of a column of dy at a time: neighbouring lanes load neighbouring columns. Their sums meet
// in a fixed order in shared memory.
const int SPAN = (PX - 1) * SH + (TAPS_Y - 1) * DH + 1;
const int TAPS = TAPS_Y * TAPS_X;
const int ACCS = ROWS * TAPS;

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int rows = c_out / groups;
    int in_group = c_in / groups;
    int row_tiles = (rows + ROWS - 1) / ROWS;
    int blocks_x = (kw + TAPS_X - 1) / TAPS_X;
    int blocks_y = (kh + TAPS_Y - 1) / TAPS_Y;
    int index = int(flat_group());
    if (index >= slice_count() * row_tiles * c_in * kd * blocks_y * blocks_x) return;
    int kx = index % blocks_x * TAPS_X;
    index /= blocks_x;
    int ky = index % blocks_y * TAPS_Y;
    index /= blocks_y;
    int kz = index % kd;
    index /= kd;
    int row0 = index % row_tiles * ROWS;
    index /= row_tiles;
    int channel = index % c_in;
    int slice = index / c_in;
    int group = channel / in_group;

    ivec4 first, size;
    int in_box;
    box_of(slice, first, size, in_box);
    ivec4 box = max(ivec4(size.x, size.y, (size.z + PX - 1) / PX, size.w), 1);
    int count = size.x * size.y * ((size.z + PX - 1) / PX) * size.w;
    int end = first_of(in_box + 1, count);
    int plane = od * oh * ow;

    // The place in the box of what this lane takes next, and what LANES add to it.
    int at = first_of(in_box, count) + lane;
    ivec4 place, step_by;
    place.w = at % box.w;
    step_by.w = LANES % box.w;
    place.z = at / box.w;
    step_by.z = LANES / box.w;
    place.y = place.z / box.z;
    step_by.y = step_by.z / box.z;
    place.z %= box.z;
    step_by.z %= box.z;
    place.x = place.y / box.y;
    step_by.x = step_by.y / box.y;
    place.y %= box.y;
    step_by.y %= box.y;

    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    for (; at < end; at += LANES) {
        int pixels = min(PX, size.z - place.z * PX);
        int ox = first.w + place.w;
        int oy = first.z + place.z * PX;
        int oz = first.y + place.y;
        int image = first.x + place.x;
        int iz = oz * sd + kz * dd - pf;
        int iy = oy * SH + ky * DH - pt;
        int ix = ox * sw + kx * dw - pl;
        bool plane_ok = !DEEP || uint(iz) < uint(d);
        int x_at = (((image * c_in + channel) * d + iz) * h + iy) * w + ix;
        int dy_at = (image * c_out + group * rows) * plane + (oz * oh + oy) * ow + ox;
        float u[ROWS * PX];
        [[unroll]] for (int m = 0; m < ROWS; m++) {
            [[unroll]] for (int q = 0; q < PX; q++) {
                bool ok = q < pixels && row0 + m < rows;
                u[m * PX + q] = ok ? LOAD(dy, ok ? dy_at + (row0 + m) * plane + q * ow : 0) : 0.0;
            }
        }
        [[unroll]] for (int r = 0; r < SPAN; r++) {
            bool line_ok = plane_ok && uint(iy + r) < uint(h);
            float v[TAPS_X];
            [[unroll]] for (int t = 0; t < TAPS_X; t++) {
                bool ok = line_ok && (!PADDED && kw == TAPS_X || uint(ix + t * dw) < uint(w));
                v[t] = ok ? LOAD(x, ok ? x_at + r * w + t * dw : 0) : 0.0;
            }
            [[unroll]] for (int y = 0; y < TAPS_Y; y++) {
                [[unroll]] for (int q = 0; q < PX; q++) {
                    // A tap of a pixel that is not there may lie on an input that is no number.
                    if (q * SH + y * DH == r && q < pixels) {
                        [[unroll]] for (int m = 0; m < ROWS; m++) {
                            [[unroll]] for (int t = 0; t < TAPS_X; t++) {
                                acc[m * TAPS + y * TAPS_X + t] += u[m * PX + q] * v[t];
                            }
                        }
                    }
                }
            }
        }
        place += step_by;
        if (place.w >= box.w) place += ivec4(0, 0, 1, -box.w);
        if (place.z >= box.z) place += ivec4(0, 1, -box.z, 0);
        if (place.y >= box.y) place += ivec4(1, -box.y, 0, 0);
    }

    int columns = in_group * kd * kh * kw;
    int total = c_out * columns;
    int in_w = ((channel - group * in_group) * kd + kz) * kh * kw;
    [[unroll]] for (int i0 = 0; i0 < ACCS; i0 += MEET) {
        [[unroll]] for (int j = 0; j < MEET; j++) {
            if (i0 + j < ACCS) sums[j * LANES + lane] = acc[min(i0 + j, ACCS - 1)];
        }
        barrier();
        if (i0 + shared_sum(lane) < ACCS) add_up(lane);
        barrier();
        int i = i0 + lane;
        int row = row0 + i / TAPS;
        int y = ky + i % TAPS / TAPS_X;
        int t = kx + i % TAPS_X;
        if (lane < MEET && i < ACCS && row < rows && y < kh && t < kw) {
            store(slice, (group * rows + row) * columns + in_w + y * kw + t, total, met(lane));
        }
        barrier();
    }
}
