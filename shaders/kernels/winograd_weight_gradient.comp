#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// The R x R taps of one pair of channels per invocation: dw = scale * (the slices of the T x T sums, added in a fixed
// order and transformed) + beta * add. Sums lie as slices[slice_count][T * T][pairs]. Rows of the sums are added and
// transformed in PARTS parts, one after the other: more of them need fewer registers, and wait more often for loads.
const int ROWS = T / PARTS;

void main() {
    int pair = int(flat_index());
    if (pair >= pairs) return;
    float rows[T][R];
    [[unroll]] for (int part = 0; part < PARTS; part++) {
        float d[ROWS][6];
        [[unroll]] for (int i = 0; i < ROWS; i++) {
            [[unroll]] for (int j = 0; j < T; j++) d[i][j] = 0.0;
        }
        for (int slice = 0; slice < slice_count; slice++) {
            int at = (slice * T + part * ROWS) * T * pairs + pair;
            [[unroll]] for (int i = 0; i < ROWS; i++) {
                [[unroll]] for (int j = 0; j < T; j++) d[i][j] += slices[at + (i * T + j) * pairs];
            }
        }
        [[unroll]] for (int i = 0; i < ROWS; i++) {
            transform_weight_gradient(d[i]);
            [[unroll]] for (int j = 0; j < R; j++) rows[part * ROWS + i][j] = d[i][j];
        }
    }
    [[unroll]] for (int j = 0; j < R; j++) {
        float column[6];
        [[unroll]] for (int i = 0; i < T; i++) column[i] = rows[i][j];
        transform_weight_gradient(column);
        [[unroll]] for (int i = 0; i < R; i++) {
            int at = (pair * R + i) * R + j;
            STORE_Y(dw, at, HAS_ADD ? scale * column[i] + beta * LOAD(add, at) : scale * column[i]);
        }
    }
}
