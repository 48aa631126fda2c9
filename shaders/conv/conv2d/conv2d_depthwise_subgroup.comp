#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define VEC4_RESIDUAL
#include "conv2d.glsl"
#include "shuffled.glsl"

// One input channel per group, by vectors: each invocation makes RY x PX neighbouring outputs of one output channel. Rows
// that are whole vectors of X_VEC (4, 2) are loaded by these, but for what no output touches of the first and last (LEFT
// is the padding); rows of whole vectors of Y_VEC are stored by them. Where loads go lane by lane a subgroup makes
// outputs of one channel: its taps are loaded once for all lanes (shuffled.glsl), one to a lane. Otherwise (PLANE_BLOCKS
// of a plane, ROW_BLOCKS of them in a row) a subgroup has blocks of several planes, and each lane loads its own taps.
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const int ROWS = (RY - 1) * SH + (KH - 1) * DH + 1;
const int TAPS = KH * KW;
const int LANE_TAPS = (TAPS + SUBGROUP - 1) / SUBGROUP;
const int SKIP = (X_VEC - LEFT % X_VEC) % X_VEC;  // inputs of the first vector that come before the first of the span
const int VECS = (SKIP + SPAN + X_VEC - 1) / X_VEC;
const int ACCS = RY * PX;
const int SUBGROUPS = int(gl_WorkGroupSize.x) / SUBGROUP;

void main() {
    int columns = PLANE_BLOCKS > 0 ? ROW_BLOCKS : (ow + PX - 1) / PX;
    int units = PLANE_BLOCKS > 0 ? PLANE_BLOCKS : columns * ((oh + RY - 1) / RY);
    int lane = int(gl_SubgroupInvocationID);
    int plane, item;  // of outputs, and a block of it
    bool inside;
    if (PLANE_BLOCKS > 0) {
        int index = int(flat_group()) * int(gl_WorkGroupSize.x) + int(gl_LocalInvocationIndex);
        plane = index / units;
        item = index - plane * units;
        inside = plane < n * c_out;
        if (!inside) plane = 0;
    } else {
        int parts = (units + SUBGROUP - 1) / SUBGROUP;
        int index = int(flat_group()) * SUBGROUPS;
        if (SUBGROUPS > 1) index += int(gl_SubgroupID);
        if (index >= n * c_out * parts) return;
        plane = index / parts;
        item = index % parts * SUBGROUP + lane;
        inside = item < units;
    }
    int image = plane / c_out, co = plane % c_out;
    int oy0 = item / columns * RY;
    int ox0 = item % columns * PX;
    int iy0 = oy0 * SH - pt;
    int ix0 = ox0 * SW - LEFT;
    int source = (image * c_in + co / (c_out / c_in)) * h;

    float k[TAPS];
    if (PLANE_BLOCKS > 0) {
        [[unroll]] for (int i = 0; i < TAPS; i++) k[i] = LOAD(weight, co * TAPS + i);
    } else {
        float lane_taps[LANE_TAPS];
        [[unroll]] for (int i = 0; i < LANE_TAPS; i++) {
            lane_taps[i] = LOAD(weight, co * TAPS + min(i * SUBGROUP + lane, TAPS - 1));
        }
        [[unroll]] for (int i = 0; i < TAPS; i++) k[i] = subgroupShuffle(lane_taps[i / SUBGROUP], i % SUBGROUP);
    }

    int height = h, width = w;
    float acc[ACCS];
    [[unroll]] for (int i = 0; i < ACCS; i++) acc[i] = 0.0;
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        int iy = iy0 + r;
        bool row_inside = inside && iy >= 0 && iy < height;
        int row = (source + iy) * width + ix0;
        float v[SPAN];
        [[unroll]] for (int i = 0; i < VECS; i++) {
            int from = X_VEC * i - SKIP;
            int first = max(from, 0);
            int count = min(from + X_VEC, SPAN) - first;
            bool ok = row_inside && ix0 + from >= 0 && ix0 + from < width;
            int at = ok ? row + first : 0;
            if (X_VEC == 4 && count > 2) {
                vec4 quad = ok ? LOAD4(x4, ok ? (row + from) / 4 : 0) : vec4(0.0);
                [[unroll]] for (int j = 0; j < 4; j++) {
                    if (from + j >= 0 && from + j < SPAN) v[from + j] = quad[j];
                }
            } else if (X_VEC > 1 && count == 2 && (first - from) % 2 == 0) {
                vec2 pair = ok ? LOAD2(x2, at / 2) : vec2(0.0);
                v[first] = pair.x;
                v[first + 1] = pair.y;
            } else {
                [[unroll]] for (int j = 0; j < X_VEC; j++) {
                    if (j < count) v[first + j] = ok ? LOAD(x, at + j) : 0.0;
                }
            }
        }
        [[unroll]] for (int o = 0; o < RY; o++) {
            int reach = r - o * SH;
            if (reach >= 0 && reach % DH == 0 && reach / DH < KH) {
                int ky = reach / DH;
                [[unroll]] for (int kx = 0; kx < KW; kx++) {
                    [[unroll]] for (int p = 0; p < PX; p++) acc[o * PX + p] += k[ky * KW + kx] * v[p * SW + kx * DW];
                }
            }
        }
    }
    if (!inside) return;
    Channel channel = channel_of(co);
    [[unroll]] for (int o = 0; o < RY; o++) {
        int out_row = (plane * oh + oy0 + o) * ow + ox0;
        [[unroll]] for (int p = 0; p < PX; p += Y_VEC) {
            int to = out_row + p;
            if (oy0 + o < oh && ox0 + p < ow) {
                // One call of finish() an output: drivers inline it in branches that are never taken too.
                vec4 values = vec4(0.0);
                if (Y_VEC == 4) values = residual4_at(to / 4);
                else [[unroll]] for (int i = 0; i < Y_VEC; i++) values[i] = residual_at(to + i);
                [[unroll]] for (int i = 0; i < Y_VEC; i++) {
                    values[i] = finish(acc[min(o * PX + p + i, ACCS - 1)], channel, values[i]);
                }
                if (Y_VEC == 4) STORE_Y4(y4, to / 4, values);
                else if (Y_VEC == 2) STORE_Y2(y2, to / 2, values.xy);
                else STORE_Y(y, to, values.x);
            }
        }
    }
}
