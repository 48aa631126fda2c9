#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// The 3 x 3 taps of one pair of channels per invocation: dw = scale * (the parts of the T x T sums, added in a fixed
// order and transformed) + beta * add. Sums lie as parts[part_count][T * T][pairs].

void main() {
    int pair = int(flat_index());
    if (pair >= pairs) return;
    float d[T][6];
    [[unroll]] for (int i = 0; i < T; i++) {
        [[unroll]] for (int j = 0; j < T; j++) d[i][j] = 0.0;
    }
    for (int part = 0; part < part_count; part++) {
        [[unroll]] for (int i = 0; i < T; i++) {
            [[unroll]] for (int j = 0; j < T; j++) d[i][j] += parts[(part * T * T + i * T + j) * pairs + pair];
        }
    }
    [[unroll]] for (int i = 0; i < T; i++) transform_weight_gradient(d[i]);
    [[unroll]] for (int j = 0; j < 3; j++) {
        float column[6];
        [[unroll]] for (int i = 0; i < T; i++) column[i] = d[i][j];
        transform_weight_gradient(column);
        [[unroll]] for (int i = 0; i < 3; i++) {
            int at = pair * 9 + i * 3 + j;
            STORE(dw, at, HAS_ADD ? scale * column[i] + beta * LOAD(add, at) : scale * column[i]);
        }
    }
}
