#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "windows.glsl"

void main() {
    uint index = flat_index();
    if (index >= planes * uint(oh * ow)) return;
    int pixel = int(index) % (oh * ow);
    int plane = int(index) / (oh * ow);
    int iy0 = pixel / ow * sh - pt;
    int ix0 = pixel % ow * sw - pl;
    ivec2 rows = taps_inside(iy0, dh, kh, h);
    ivec2 cols = taps_inside(ix0, dw, kw, w);
    bool found = false;
    float best = 0.0;
    int at = 0;
    for (int ky = rows.x; ky < rows.y; ky++) {
        int iy = iy0 + ky * dh;
        for (int kx = cols.x; kx < cols.y; kx++) {
            int ix = ix0 + kx * dw;
            float v = LOAD(x, (plane * h + iy) * w + ix);
            if (found && (isnan(best) || (!isnan(v) && !(v > best)))) continue;
            found = true;
            best = v;
            at = COLUMN_MAJOR ? ix * h + iy : iy * w + ix;
        }
    }
    // A window that holds nothing of x has no place: -1.
    y[index] = found ? uvec2(uint(plane * h * w + at), 0u) : uvec2(0xFFFFFFFFu);
}
