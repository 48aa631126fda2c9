#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "conv2d.glsl"
#include "transposed.glsl"

// The products of every input with every tap, [image][group][c_out / groups][kh][kw][row of x][w], summed into the
// outputs that they reach, one per invocation: ``outputs`` rows of ``images`` images. x is those products, of ``rows``
// rows from ``first_row`` on.

void main() {
    uint index = flat_index();
    if (index >= uint(images * c_out) * uint(outputs * ow)) return;
    int pixel = int(index) % (outputs * ow);
    int plane = int(index) / (outputs * ow);  // image * c_out + channel: groups are neighbouring channels
    int oy = first_output + pixel / ow;
    int ox = pixel % ow;
    Taps ys = taps_reaching(oy + pt, SH, DH, GCD_H, INVERSE_H, kh, h);
    Taps xs = taps_reaching(ox + pl, SW, DW, GCD_W, INVERSE_W, kw, w);
    float acc = 0.0;
    for (int j = ys.begin; j < ys.end; j++) {
        int row = ys.origin - j * (DH / GCD_H) - first_row;
        int tap = (plane * kh + ys.first + j * (SH / GCD_H)) * kw + xs.first;
        for (int i = xs.begin; i < xs.end; i++) {
            acc += x[((tap + i * (SW / GCD_W)) * rows + row) * w + xs.origin - i * (DW / GCD_W)];
        }
    }
    STORE(y, ((first_image * c_out + plane) * oh + oy) * ow + ox, finish(acc, channel_of(plane % c_out)));
}
