#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// The R x R taps of one pair of channels per invocation to T x T weights: u[T * T][c_out][c_in].

void main() {
    int index = int(flat_index());
    int size = c_out * c_in;
    if (index >= size) return;

    float rows[R][MOST_T];
    [[unroll]] for (int i = 0; i < R; i++) {
        float g[R];
        [[unroll]] for (int j = 0; j < R; j++) g[j] = LOAD(weight, (index * R + i) * R + j);
        transform_weight(g, rows[i]);
    }
    [[unroll]] for (int j = 0; j < T; j++) {
        float g[R], column[MOST_T];
        [[unroll]] for (int i = 0; i < R; i++) g[i] = rows[i][j];
        transform_weight(g, column);
        [[unroll]] for (int i = 0; i < T; i++) STORE_Y(u, (i * T + j) * size + index, column[i]);
    }
}
