#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"

// One input channel per group and as many output channels: planes of all images lie one behind the other, in the input
// as in the output. A workgroup has PLANES of them, or a band of BAND rows of outputs of one. The input rows that it
// reads are one range of elements, which neighbouring lanes copy into shared memory as it lies, 16-bit elements in
// pairs. Then an invocation makes RY x PX neighbouring outputs; windows read the zero behind the range where they leave
// the plane.
const int BANDS = (OH + BAND - 1) / BAND;
const int ROW_BLOCKS = (BAND + RY - 1) / RY;
const int COLUMN_BLOCKS = (OW + PX - 1) / PX;
const int ITEMS = PLANES * ROW_BLOCKS * COLUMN_BLOCKS;
const int TAPS = KH * KW;
const int ROWS = (RY - 1) * SH + (KH - 1) * DH + 1;
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
#ifdef DTYPE_f32
const int TOGETHER = 1;
#else
const int TOGETHER = 2;
#endif
// The range may begin within a pair.
const int TILE = (PLANES * LINES * W + 2 * (TOGETHER - 1)) / TOGETHER;
const int ZERO = TILE * TOGETHER;
const int IN_FLIGHT = 8;

shared float tile[ZERO + 1];
shared float taps[PLANES * TAPS];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int local = int(gl_WorkGroupSize.x);
    int planes = n * c_out;
    int group = int(flat_group());
    int band = BANDS == 1 ? 0 : group % BANDS;
    int first = group / BANDS * PLANES;
    if (first >= planes) return;
    int held = min(PLANES, planes - first);

    // Input rows from top on; of whole planes all of them.
    int top = BANDS == 1 ? 0 : clamp(band * BAND * SH - pt, 0, H);
    int bottom = BANDS == 1 ? H : clamp((band * BAND + BAND - 1) * SH - pt + (KH - 1) * DH + 1, top, H);
    int from = (first * H + top) * W;
    int lead = from % TOGETHER;
    int begin = from / TOGETHER;
    int count = ((first + held - 1) * H + bottom) * W;
    count = (count + TOGETHER - 1) / TOGETHER - begin;
    for (int base = 0; base < TILE; base += IN_FLIGHT * local) {
#ifdef DTYPE_f32
        float next[IN_FLIGHT];
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            int i = base + q * local + lane;
            next[q] = i < count ? LOAD(x, begin + i) : 0.0;
        }
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            int i = base + q * local + lane;
            if (i < count) tile[i] = next[q];
        }
#else
        vec2 next[IN_FLIGHT];
        int pairs = n * c_in * H * W / 2;
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            int i = base + q * local + lane;
            next[q] = vec2(0.0);
            if (i < count) {
                // An odd element at the end has no other.
                if (begin + i < pairs) next[q] = LOAD2(x2, begin + i);
                else next[q].x = LOAD(x, 2 * pairs);
            }
        }
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            int i = base + q * local + lane;
            if (i < count) {
                tile[2 * i] = next[q].x;
                tile[2 * i + 1] = next[q].y;
            }
        }
#endif
    }
    for (int i = lane; i < held * TAPS; i += local) taps[i] = LOAD(weight, (first + i / TAPS) % c_out * TAPS + i % TAPS);
    if (lane == 0) tile[ZERO] = 0.0;
    barrier();

    for (int i = lane; i < ITEMS; i += local) {
        int ox0 = i % COLUMN_BLOCKS * PX;
        int part = i / (COLUMN_BLOCKS * ROW_BLOCKS);
        int oy0 = band * BAND + i / COLUMN_BLOCKS % ROW_BLOCKS * RY;
        if (part >= held) break;
        int iy0 = oy0 * SH - pt;
        int ix0 = ox0 * SW - pl;
        int at = lead + (part * H + iy0 - top) * W + ix0;
        float k[TAPS];
        [[unroll]] for (int t = 0; t < TAPS; t++) k[t] = taps[part * TAPS + t];
        bool column_inside[SPAN];
        [[unroll]] for (int s = 0; s < SPAN; s++) column_inside[s] = ix0 + s >= 0 && ix0 + s < W;
        float acc[RY * PX];
        [[unroll]] for (int o = 0; o < RY * PX; o++) acc[o] = 0.0;
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            // Rows beyond the band are of outputs that are not stored, and may not be there.
            bool row_inside = iy0 + r >= top && iy0 + r < bottom;
            float v[SPAN];
            [[unroll]] for (int s = 0; s < SPAN; s++) {
                v[s] = tile[row_inside && column_inside[s] ? at + r * W + s : ZERO];
            }
            [[unroll]] for (int o = 0; o < RY; o++) {
                int reach = r - o * SH;
                if (reach >= 0 && reach % DH == 0 && reach / DH < KH) {
                    [[unroll]] for (int kx = 0; kx < KW; kx++) {
                        [[unroll]] for (int p = 0; p < PX; p++) {
                            acc[o * PX + p] += k[reach / DH * KW + kx] * v[p * SW + kx * DW];
                        }
                    }
                }
            }
        }
        Channel channel = channel_of((first + part) % c_out);
        int rows = min(OH, band * BAND + BAND) - oy0;
        int to = ((first + part) * OH + oy0) * OW + ox0;
        [[unroll]] for (int o = 0; o < RY; o++) {
            [[unroll]] for (int p = 0; p < PX; p++) {
                if (o < rows && (PX == 1 || ox0 + p < OW)) {
                    STORE_Y(y, to + o * OW + p, finish(acc[o * PX + p], channel, residual_at(to + o * OW + p)));
                }
            }
        }
    }
}
