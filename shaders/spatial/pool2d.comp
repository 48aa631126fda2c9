#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "windows.glsl"
#include "extremes.glsl"
#include "pow.glsl"

const uint AVERAGE = 0, MAXIMUM = 1, NORM = 2;  // KINDS in vkconv/ops/spatial/pool2d.py

// One output per invocation. Padding never wins a maximum and adds nothing to a sum; the average divides by the
// taps on the input or, with COUNT_PADDING, on the input and its padding, never by those beyond both.
void main() {
    uint index = flat_index();
    if (index >= planes * uint(oh * ow)) return;
    int pixel = int(index) % (oh * ow);
    int plane = int(index) / (oh * ow) * h;
    int iy0 = pixel / ow * sh - pt;
    int ix0 = pixel % ow * sw - pl;
    ivec2 rows = taps_inside(iy0, dh, kh, h);
    ivec2 cols = taps_inside(ix0, dw, kw, w);
    float best = uintBitsToFloat(0xFF800000u);
    float sum = 0.0;
    for (int ky = rows.x; ky < rows.y; ky++) {
        int row = (plane + iy0 + ky * dh) * w + ix0;
        for (int kx = cols.x; kx < cols.y; kx++) {
            float v = LOAD(x, row + kx * dw);
            sum += KIND == NORM ? pow_f32(abs(v), p) : v;
            best = larger(v, best);
        }
    }
    if (COUNT_PADDING) {
        rows = taps_inside(iy0 + pt, dh, kh, pt + h + pb);
        cols = taps_inside(ix0 + pl, dw, kw, pl + w + pr);
    }
    int count = max(rows.y - rows.x, 0) * max(cols.y - cols.x, 0);
    float norm = KIND == NORM ? pow_f32(sum, 1.0 / p) : 0.0;
    STORE(y, index, KIND == MAXIMUM ? best : KIND == NORM ? norm : sum / float(count));
}
