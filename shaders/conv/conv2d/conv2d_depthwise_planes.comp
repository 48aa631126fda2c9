#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"

// One input channel per group and as many output channels: planes of all images lie one behind the other, in the input
// as in the output. A workgroup has PLANES of them, or a band of BAND rows of outputs of one. The input rows that it
// reads are one range of elements, which neighbouring lanes copy into shared memory as it lies, by vectors of four. Then
// an invocation makes RY x PX neighbouring outputs; where windows leave the plane they read the zero in front of the
// range, to which masks lead them: no load is tested. Outputs are one range too, which, STAGED, goes out by way of shared
// memory: rows of odd lengths are stored by vectors of four all the same, but for the ends of the range. Else each
// invocation stores what it made, PAIRS by two.
const int BANDS = (OH + BAND - 1) / BAND;
const int ROW_BLOCKS = (BAND + RY - 1) / RY;
const int COLUMN_BLOCKS = (OW + PX - 1) / PX;
const int ITEMS = PLANES * ROW_BLOCKS * COLUMN_BLOCKS;
const int TAPS = KH * KW;
const int ROWS = (RY - 1) * SH + (KH - 1) * DH + 1;
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
// Vectors that ranges of elements touch, whose first and last ones may be in part of others. In front of the inputs'
// is that of the zero.
const int BEGIN = 4;
const int TILE_VEC4S = (PLANES * LINES * W + 6) / 4;
const int OUT_VEC4S = STAGED * ((PLANES * BAND * OW + 6) / 4);
const int IN_FLIGHT = 4;

shared float tile[BEGIN + 4 * TILE_VEC4S];
shared float outputs[4 * OUT_VEC4S + 1];
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
    int begin = from / 4;
    int whole = n * C * H * W / 4;
    int count = (((first + held - 1) * H + bottom) * W + 3) / 4 - begin;
    // What is loaded beyond the range is not stored.
    for (int base = 0; base < TILE_VEC4S && whole > 0; base += IN_FLIGHT * local) {
        vec4 next[IN_FLIGHT];
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            next[q] = LOAD4(x4, min(begin + base + q * local + lane, whole - 1));
        }
        [[unroll]] for (int q = 0; q < IN_FLIGHT; q++) {
            int i = base + q * local + lane;
            if (i < min(count, whole - begin)) {
                [[unroll]] for (int j = 0; j < 4; j++) tile[BEGIN + 4 * i + j] = next[q][j];
            }
        }
    }
    // Elements behind the last whole vector of all.
    int rest = 4 * whole + lane;
    if (begin + count > whole && rest < n * C * H * W) tile[BEGIN + rest - 4 * begin] = LOAD(x, rest);
    for (int i = lane; i < held * TAPS; i += local) taps[i] = LOAD(weight, (first + i / TAPS) % C * TAPS + i % TAPS);
    if (lane == 0) tile[0] = 0.0;
    barrier();

    int out_from = (first * OH + band * BAND) * OW;
    int out_end = BANDS == 1 ? out_from + held * OH * OW : out_from + min(BAND, OH - band * BAND) * OW;
    int out_begin = out_from / 4;

    for (int i = lane; i < ITEMS; i += local) {
        int ox0 = i % COLUMN_BLOCKS * PX;
        int part = i / (COLUMN_BLOCKS * ROW_BLOCKS);
        int oy0 = band * BAND + i / COLUMN_BLOCKS % ROW_BLOCKS * RY;
        if (part >= held) break;
        int iy0 = oy0 * SH - pt;
        int ix0 = ox0 * SW - pl;
        int at = BEGIN + from % 4 + (part * H + iy0 - top) * W + ix0;
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
                    int place = to + o * OW + p;
                    made[p] = finish(acc[o * PX + p], channel, residual_at(there ? place : to));
                    if (STAGED == 1 && there) outputs[place - 4 * out_begin] = made[p];
                    else if (!PAIRS && there) STORE_Y(y, place, made[p]);
                }
                if (STAGED == 0 && PAIRS) {
                    [[unroll]] for (int p = 0; p < PX; p += 2) {
                        bool there = OW % PX == 0 || ox0 + p < OW;
                        if (there) STORE_Y2(y2, (to + o * OW + p) / 2, vec2(made[p], made[min(p + 1, PX - 1)]));
                    }
                }
            }
        }
    }
    if (STAGED == 0) return;
    barrier();

    for (int i = lane; i < OUT_VEC4S; i += local) {
        int place = 4 * (out_begin + i);
        vec4 values = vec4(outputs[4 * i], outputs[4 * i + 1], outputs[4 * i + 2], outputs[4 * i + 3]);
        if (place >= out_from && place + 4 <= out_end) {
            STORE_Y4(y4, place / 4, values);
        } else {
            [[unroll]] for (int j = 0; j < 4; j++) {
                if (place + j >= out_from && place + j < out_end) STORE_Y(y, place + j, values[j]);
            }
        }
    }
}
