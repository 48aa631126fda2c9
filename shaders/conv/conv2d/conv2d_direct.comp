#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"
#include "windows.glsl"

// One output element per invocation, by definition: any groups, stride, dilation and padding.
void main() {
    uint index = flat_index();
    if (index >= uint(n * c_out) * uint(oh * ow)) return;
    int pixel = int(index) % (oh * ow);
    int plane = int(index) / (oh * ow);
    int co = plane % c_out;
    int in_group = c_in / groups;
    int first = (plane / c_out) * c_in + co / (c_out / groups) * in_group;
    int iy0 = pixel / ow * sh - pt;
    int ix0 = pixel % ow * sw - pl;
    ivec2 rows = taps_inside(iy0, dh, kh, h);
    ivec2 cols = taps_inside(ix0, dw, kw, w);
    float acc = 0.0;
    for (int ci = 0; ci < in_group; ci++) {
        for (int ky = rows.x; ky < rows.y; ky++) {
            int row = ((first + ci) * h + iy0 + ky * dh) * w + ix0;
            int tap = ((co * in_group + ci) * kh + ky) * kw;
            for (int kx = cols.x; kx < cols.y; kx++) acc += LOAD(x, row + kx * dw) * LOAD(weight, tap + kx);
        }
    }
    STORE_Y(y, index, finish(acc, channel_of(co), residual_at(int(index))));
}
