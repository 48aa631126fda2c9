#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// The 3 x 3 taps of one pair of channels per invocation: dw = scale * (the slices of the T x T sums, added in a fixed
// order and transformed) + beta * add. Sums lie as slices[slice_count][T * T][pairs].

void main() {
    int pair = int(flat_index());
    if (pair >= pairs) return;
    float d[T][6];
    [[unroll]] for (int i = 0; i < T; i++) {
        [[unroll]] for (int j = 0; j < T; j++) d[i][j] = 0.0;
    }
    for (int slice = 0; slice < slice_count; slice++) {
        [[unroll]] for (int i = 0; i < T; i++) {
            [[unroll]] for (int j = 0; j < T; j++) d[i][j] += slices[(slice * T * T + i * T + j) * pairs + pair];
        }
    }
    [[unroll]] for (int i = 0; i < T; i++) transform_weight_gradient(d[i]);
    [[unroll]] for (int j = 0; j < 3; j++) {
        float column[6];
        [[unroll]] for (int i = 0; i < T; i++) column[i] = d[i][j];
        transform_weight_gradient(column);
        [[unroll]] for (int i = 0; i < 3; i++) {
            int at = pair * 9 + i * 3 + j;
            STORE_Y(dw, at, HAS_ADD ? scale * column[i] + beta * LOAD(add, at) : scale * column[i]);
        }
    }
}
