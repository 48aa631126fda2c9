#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// One channel of one tile of dy per invocation, M on a side, to its T x T products' left operands:
// u[T * T][c_out][count]; see winograd_input.comp for the tiles. Beyond the image a tile is zero.

void main() {
    int index = int(flat_index());
    if (index >= c_out * count) return;
    int co = index / count;
    int tile = first + index % count;
    int image = tile / (tiles_y * tiles_x);
    int oy0 = tile / tiles_x % tiles_y * M;
    int ox0 = tile % tiles_x * M;
    int plane = (image * c_out + co) * oh * ow;

    float d[M][MOST_T];
    [[unroll]] for (int i = 0; i < M; i++) {
        [[unroll]] for (int j = 0; j < M; j++) {
            bool inside = oy0 + i < oh && ox0 + j < ow;
            d[i][j] = inside ? LOAD(dy, inside ? plane + (oy0 + i) * ow + ox0 + j : 0) : 0.0;
        }
        transform_output_gradient(d[i]);
    }
    [[unroll]] for (int j = 0; j < T; j++) {
        float column[MOST_T];
        [[unroll]] for (int i = 0; i < M; i++) column[i] = d[i][j];
        transform_output_gradient(column);
        [[unroll]] for (int i = 0; i < T; i++) u[(i * T + j) * c_out * count + index] = column[i];
    }
}
