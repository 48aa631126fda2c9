#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"

// One input channel per group and as many output channels: planes of all images lie one behind the other, in the input
// as in the output. A workgroup has PLANES of them, or a band of BAND rows of outputs of one. The input rows that it
// reads are one range of elements, which neighbouring lanes copy into shared memory as it lies, 16-bit elements in
// pairs. Then an invocation makes RY x PX neighbouring outputs; where windows leave the plane they read the zero in
// front of the range, to which masks lead them: no load is tested. PAIRS: outputs are stored by two.
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
// The range may begin within a pair, and end within one. Its first element is behind the zero, at an even place.
const int TILE = (PLANES * LINES * W + 2) / 2 * 2;
const int BEGIN = 2;
const int IN_FLIGHT = 8;

shared float tile[BEGIN + TILE];
shared float taps[PLANES * TAPS];

// All bits set where an index is inside, none where it is not.
int mask_of(int index, int extent) { return -int(uint(index) < uint(extent)); }

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int local = int(gl_WorkGroupSize.x);
    int planes = n * C;
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
    // What is loaded beyond the range is not stored.
#ifdef DTYPE_f32
    for (int base = 0; base < TILE; base += IN_FLIGHT * local) {
        float next[IN_FLIGHT];
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            next[q] = LOAD(x, min(begin + base + q * local + lane, n * C * H * W - 1));
        }
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            int i = base + q * local + lane;
            if (i < count) tile[BEGIN + i] = next[q];
        }
    }
#else
    int pairs = n * C * H * W / 2;
    for (int base = 0; base < TILE / TOGETHER && pairs > 0; base += IN_FLIGHT * local) {
        vec2 next[IN_FLIGHT];
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            next[q] = LOAD2(x2, min(begin + base + q * local + lane, pairs - 1));
        }
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            int i = base + q * local + lane;
            if (i < count) {
                tile[BEGIN + 2 * i] = next[q].x;
                tile[BEGIN + 2 * i + 1] = next[q].y;
            }
        }
    }
    // An odd element at the end is in no pair.
    barrier();
    if (begin + count > pairs && lane == 0) tile[BEGIN + 2 * (pairs - begin)] = LOAD(x, 2 * pairs);
#endif
    for (int i = lane; i < held * TAPS; i += local) taps[i] = LOAD(weight, (first + i / TAPS) % C * TAPS + i % TAPS);
    if (lane == 0) tile[0] = 0.0;
    barrier();

    for (int i = lane; i < ITEMS; i += local) {
        int ox0 = i % COLUMN_BLOCKS * PX;
        int part = i / (COLUMN_BLOCKS * ROW_BLOCKS);
        int oy0 = band * BAND + i / COLUMN_BLOCKS % ROW_BLOCKS * RY;
        if (part >= held) break;
        int iy0 = oy0 * SH - pt;
        int ix0 = ox0 * SW - pl;
        int at = BEGIN + lead + (part * H + iy0 - top) * W + ix0;
        float k[TAPS];
        [[unroll]] for (int t = 0; t < TAPS; t++) k[t] = taps[part * TAPS + t];
        int column_masks[SPAN];
        [[unroll]] for (int s = 0; s < SPAN; s++) column_masks[s] = mask_of(ix0 + s, W);
        float acc[RY * PX];
        [[unroll]] for (int o = 0; o < RY * PX; o++) acc[o] = 0.0;
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            // Rows beyond the band are of outputs that are not stored, and may not be there.
            int row_mask = mask_of(iy0 + r - top, bottom - top);
            float v[SPAN];
            [[unroll]] for (int s = 0; s < SPAN; s++) v[s] = tile[at + (r * W + s) & row_mask & column_masks[s]];
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
        Channel channel = channel_of((first + part) % C);
        int rows = min(OH, band * BAND + BAND) - oy0;
        int to = ((first + part) * OH + oy0) * OW + ox0;
        [[unroll]] for (int o = 0; o < RY; o++) {
            if (o < rows) {
                float made[PX];
                [[unroll]] for (int p = 0; p < PX; p++) {
                    bool there = OW % PX == 0 || ox0 + p < OW;
                    made[p] = finish(acc[o * PX + p], channel, residual_at(there ? to + o * OW + p : to));
                    if (!PAIRS && there) STORE_Y(y, to + o * OW + p, made[p]);
                }
                if (PAIRS) {
                    [[unroll]] for (int p = 0; p < PX; p += 2) {
                        bool there = OW % PX == 0 || ox0 + p < OW;
                        if (there) STORE_Y2(y2, (to + o * OW + p) / 2, vec2(made[p], made[min(p + 1, PX - 1)]));
                    }
                }
            }
        }
    }
}
