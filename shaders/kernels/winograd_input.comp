#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// One channel of one tile of inputs per invocation, T on a side, to its T x T products' left operands:
// v[T * T][c_in][count], for ``count`` tiles from ``first`` on, counted over images, rows and columns of tiles.

void main() {
    int index = int(flat_index());
    if (index >= c_in * count) return;
    int ci = index / count;
    int tile = first + index % count;
    int image = tile / (tiles_y * tiles_x);
    int iy0 = tile / tiles_x % tiles_y * M - pt;
    int ix0 = tile % tiles_x * M - pl;
    int plane = (image * c_in + ci) * h * w;

    float d[T][6];
    [[unroll]] for (int i = 0; i < T; i++) {
        int iy = iy0 + i;
        bool row_inside = iy >= 0 && iy < h;
        [[unroll]] for (int j = 0; j < T; j++) {
            int ix = ix0 + j;
            bool inside = row_inside && ix >= 0 && ix < w;
            d[i][j] = inside ? LOAD(x, inside ? plane + iy * w + ix : 0) : 0.0;
        }
        transform_input(d[i]);
    }
    [[unroll]] for (int j = 0; j < T; j++) {
        float column[6];
        [[unroll]] for (int i = 0; i < T; i++) column[i] = d[i][j];
        transform_input(column);
        [[unroll]] for (int i = 0; i < T; i++) v[(i * T + j) * c_in * count + index] = column[i];
    }
}
