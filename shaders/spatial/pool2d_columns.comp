#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common.glsl"
#include "windows.glsl"
#include "extremes.glsl"

// PX neighbouring outputs of a row by each invocation: the SPAN inputs of a row are loaded once for all of them, by
// vec4 if X_VEC4 (rows are whole vec4, and so is what lies between two blocks of columns; LEFT is the padding). The
// rest is as in pool2d.comp.
const uint AVERAGE = 0, MAXIMUM = 1;  // KINDS in vkconv/ops/spatial/pool2d.py
const int SPAN = (PX - 1) * SW + (KW - 1) * DW + 1;
const int SKIP = X_VEC4 ? (4 - LEFT % 4) % 4 : 0;  // inputs of the first vec4 that come before the first of the span
const int QUADS = X_VEC4 ? (SKIP + SPAN + 3) / 4 : 1;

void main() {
    uint index = flat_index();
    uint columns = uint((ow + PX - 1) / PX);
    if (index >= planes * uint(oh) * columns) return;
    int ox0 = int(index % columns) * PX;
    int out_row = int(index / columns);
    int iy0 = out_row % oh * sh - pt;
    int ix0 = ox0 * SW - LEFT;
    int plane = out_row / oh * h;

    float best[PX];
    [[unroll]] for (int p = 0; p < PX; p++) best[p] = KIND == MAXIMUM ? uintBitsToFloat(0xFF800000u) : 0.0;
    for (int ky = 0; ky < KH; ky++) {
        int iy = iy0 + ky * dh;
        bool row_inside = iy >= 0 && iy < h;
        int row = (plane + iy) * w + ix0;
        float v[SPAN];
        float outside = KIND == MAXIMUM ? uintBitsToFloat(0xFF800000u) : 0.0;
        if (X_VEC4) {
            vec4 quad[QUADS];
            [[unroll]] for (int i = 0; i < QUADS; i++) {
                int ix = ix0 - SKIP + 4 * i;
                bool ok = row_inside && ix >= 0 && ix < w;
                quad[i] = ok ? LOAD4(x4, ok ? (row - SKIP) / 4 + i : 0) : vec4(outside);
            }
            [[unroll]] for (int i = 0; i < SPAN; i++) v[i] = quad[(SKIP + i) / 4][(SKIP + i) % 4];
        } else {
            [[unroll]] for (int i = 0; i < SPAN; i++) {
                bool ok = row_inside && ix0 + i >= 0 && ix0 + i < w;
                v[i] = ok ? LOAD(x, ok ? row + i : 0) : outside;
            }
        }
        [[unroll]] for (int kx = 0; kx < KW; kx++) {
            [[unroll]] for (int p = 0; p < PX; p++) {
                float value = v[p * SW + kx * DW];
                best[p] = KIND == AVERAGE ? best[p] + value : larger(value, best[p]);
            }
        }
    }
    if (KIND == AVERAGE) {
        ivec2 rows = COUNT_PADDING ? taps_inside(iy0 + pt, dh, KH, pt + h + pb) : taps_inside(iy0, dh, KH, h);
        int counted = max(rows.y - rows.x, 0);
        [[unroll]] for (int p = 0; p < PX; p++) {
            int ix = ix0 + p * SW;
            ivec2 cols = COUNT_PADDING ? taps_inside(ix + LEFT, DW, KW, LEFT + w + pr) : taps_inside(ix, DW, KW, w);
            best[p] = best[p] / float(counted * max(cols.y - cols.x, 0));
        }
    }
    [[unroll]] for (int p = 0; p < PX; p += Y_VEC4 ? 4 : 1) {
        if (ox0 + p >= ow) break;
        int at = out_row * ow + ox0 + p;
        if (Y_VEC4) {
            vec4 values;
            [[unroll]] for (int i = 0; i < 4; i++) values[i] = best[min(p + i, PX - 1)];
            STORE4(y4, at / 4, values);
        } else {
            STORE(y, at, best[p]);
        }
    }
}
