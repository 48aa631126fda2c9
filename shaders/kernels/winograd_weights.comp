#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// The 3 x 3 taps of one pair of channels per invocation to T x T weights: u[T * T][c_out][c_in].

void main() {
    int index = int(flat_index());
    int size = c_out * c_in;
    if (index >= size) return;

    float rows[3][6];
    [[unroll]] for (int i = 0; i < 3; i++) {
        float g[3];
        [[unroll]] for (int j = 0; j < 3; j++) g[j] = LOAD(weight, index * 9 + i * 3 + j);
        transform_weight(g[0], g[1], g[2], rows[i]);
    }
    [[unroll]] for (int j = 0; j < T; j++) {
        float column[6];
        transform_weight(rows[0][j], rows[1][j], rows[2][j], column);
        [[unroll]] for (int i = 0; i < T; i++) u[(i * T + j) * size + index] = column[i];
    }
}
