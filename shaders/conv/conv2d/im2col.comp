#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Windows of x as columns of a matrix, [image][c_in][kh][kw][pixel], zeros where a window hangs over: ``count`` pixels
// from ``first_pixel`` on of ``images`` images from ``first_image`` on. An invocation makes the taps of one channel.

void main() {
    int index = int(flat_index());
    if (index >= images * c_in * count) return;
    int pixel = first_pixel + index % count;
    int plane = index / count;  // image * c_in + channel, as in x
    int iy0 = pixel / ow * sh - pt;
    int ix0 = pixel % ow * sw - pl;
    int from = (first_image * c_in + plane) * h * w;
    int to = plane * KH * KW * count + index % count;
    for (int ky = 0; ky < KH; ky++) {
        int iy = iy0 + ky * dh;
        bool row_inside = iy >= 0 && iy < h;
        for (int kx = 0; kx < KW; kx++) {
            int ix = ix0 + kx * dw;
            bool ok = row_inside && ix >= 0 && ix < w;
            STORE(columns, to, ok ? LOAD(x, ok ? from + iy * w + ix : 0) : 0.0);
            to += count;
        }
    }
}
