#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require
#include "backward_weight_store.glsl"

// One input channel per group: a workgroup makes the taps of one output channel, of a slice of its pixels. An item is
// COLUMNS neighbouring columns of dy by a strip of rows, of an image; neighbouring lanes have neighbouring columns. A
// lane goes down its strip and takes TOGETHER rows of dy at a time and the rows of x that begin with them, which it
// loads before it multiplies any: each element of x and dy is loaded once, but for what neighbours share. The newest
// rows of dy that a row of x may still meet, and the sums of all taps, stay in registers. What is not there is loaded
// from the first element and is zero: a load is cheaper than a branch.
// VEC4_X, VEC4_DY: rows are whole vec4. TAIL: the last columns of a row are no whole COLUMNS.
const int SPAN = (COLUMNS - 1) * SW + (KW - 1) * DW + 1;
const int TAPS = KH * KW;
const int BEFORE = (KH - 1) * DH / SH;  // rows of dy before the newest that a row of x meets
const int WINDOW = BEFORE + TOGETHER;
// Columns of x in whole vec4: the first one begins so many before an item's first pixel, padding or not.
const int LEAD = (PL + 3) / 4 * 4;
const int QUADS = (LEAD - PL + SPAN + 3) / 4;

#include "backward_weight_taps.glsl"

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int index = int(flat_group());
    if (index >= slice_count * c_out) return;
    int channel = index % c_out;
    int slice = index / c_out;
    int column_blocks = (ow + COLUMNS - 1) / COLUMNS;
    int strips = (oh + strip - 1) / strip;
    int items = n * strips * column_blocks;
    int share = (items + slice_count - 1) / slice_count;
    int end = min(items, slice * share + share);

    float acc[TAPS];
    [[unroll]] for (int i = 0; i < TAPS; i++) acc[i] = 0.0;
    for (int item = slice * share + lane; item < end; item += LANES) {
        int ox = item % column_blocks * COLUMNS;
        int oy = item / column_blocks % strips * strip;
        int image = item / (column_blocks * strips);
        int rows = min(strip, oh - oy);
        int pixels = ow - ox;
        int ix = ox * SW - PL;
        int x_at = (image * c_in + channel / multiplier) * h * w;
        int dy_at = ((image * c_out + channel) * oh + oy) * ow + ox;
        float window[WINDOW * COLUMNS];  // from the oldest row of dy on
        [[unroll]] for (int i = 0; i < WINDOW * COLUMNS; i++) window[i] = 0.0;
        for (int t = 0; t < rows + BEFORE; t += TOGETHER) {
            [[unroll]] for (int s = 0; s < TOGETHER; s++) {
                bool row_ok = t + s < rows;
                int at = dy_at + (t + s) * ow;
                if (VEC4_DY) {
                    [[unroll]] for (int q = 0; q < COLUMNS / 4; q++) {
                        vec4 u = LOAD4(dy4, row_ok ? at / 4 + q : 0);
                        [[unroll]] for (int m = 0; m < 4; m++) {
                            window[(BEFORE + s) * COLUMNS + 4 * q + m] = row_ok ? u[m] : 0.0;
                        }
                    }
                } else {
                    [[unroll]] for (int q = 0; q < COLUMNS; q++) {
                        bool ok = row_ok && (!TAIL || q < pixels);
                        float u = LOAD(dy, ok ? at + q : 0);
                        window[(BEFORE + s) * COLUMNS + q] = ok ? u : 0.0;
                    }
                }
            }
            float v[TOGETHER * SH * SPAN];
            [[unroll]] for (int r = 0; r < TOGETHER * SH; r++) {
                int iy = (oy + t) * SH - pt + r;
                bool row_ok = uint(iy) < uint(h);
                int at = x_at + iy * w + ix;
                [[unroll]] for (int k = 0; k < QUADS; k++) {
                    // Of this vec4, elements from m0 on and before m1 are in the span.
                    int i0 = PL - LEAD + 4 * k;
                    int m0 = max(0, -i0);
                    int m1 = min(4, SPAN - i0);
                    if (VEC4_X && m1 - m0 > 1) {
                        bool ok = row_ok && uint(ix + i0) < uint(w);
                        vec4 u = LOAD4(x4, ok ? (at + i0) / 4 : 0);
                        [[unroll]] for (int m = 0; m < 4; m++) {
                            if (m >= m0 && m < m1) v[r * SPAN + max(i0 + m, 0)] = ok ? u[m] : 0.0;
                        }
                    } else {
                        [[unroll]] for (int m = 0; m < 4; m++) {
                            if (m >= m0 && m < m1) {
                                bool ok = row_ok && uint(ix + i0 + m) < uint(w);
                                float u = LOAD(x, ok ? at + i0 + m : 0);
                                v[r * SPAN + max(i0 + m, 0)] = ok ? u : 0.0;
                            }
                        }
                    }
                }
            }
            [[unroll]] for (int s = 0; s < TOGETHER; s++) {
                [[unroll]] for (int b = 0; b <= BEFORE; b++) {
                    // A row that is not there may lie on an input that is no number.
                    if (uint(t + s - b) < uint(rows)) {
                        [[unroll]] for (int ky = 0; ky < KH; ky++) {
                            int r = ky * DH - b * SH;
                            if (r >= 0 && r < SH) {
                                [[unroll]] for (int q = 0; q < COLUMNS; q++) {
                                    float u = window[(BEFORE + s - b) * COLUMNS + q];
                                    [[unroll]] for (int kx = 0; kx < KW; kx++) {
                                        float met = v[(s * SH + r) * SPAN + q * SW + kx * DW];
                                        // So may a column, and a select is cheaper than a branch.
                                        if (TAIL && q > 0) met = q < pixels ? met : 0.0;
                                        acc[ky * KW + kx] += u * met;
                                    }
                                }
                            }
                        }
                    }
                }
            }
            [[unroll]] for (int i = 0; i < BEFORE * COLUMNS; i++) window[i] = window[i + TOGETHER * COLUMNS];
        }
    }

    store_taps(acc, lane, slice, channel, c_out * TAPS);
}
