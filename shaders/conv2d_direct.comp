#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"

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
    int tap = co * in_group * kh * kw;
    float acc = 0.0;
    for (int ci = 0; ci < in_group; ci++) {
        for (int ky = 0; ky < kh; ky++) {
            int iy = iy0 + ky * dh;
            int row = ((first + ci) * h + iy) * w;
            for (int kx = 0; kx < kw; kx++, tap++) {
                int ix = ix0 + kx * dw;
                if (iy >= 0 && iy < h && ix >= 0 && ix < w) acc += TO_F32(x[row + ix]) * TO_F32(weight[tap]);
            }
        }
    }
    y[index] = finish(acc + bias_of(co));
}
