#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// The R x R taps of one pair of channels per invocation: dw = scale * (the slices of the T x T sums, added in a fixed
// order and transformed) + beta * add. Sums lie as slices[slice_count][T * T][pairs]. Rows of the sums are added and
// transformed in PARTS parts, one after the other: more of them need fewer registers, and wait more often for loads.
// With STAGED pairs, those of a workgroup, their taps go by way of shared memory, so that neighbouring lanes store
// neighbouring taps.
const int ROWS = T / PARTS;
const int TAPS = R * R;

shared float taps[STAGED * TAPS + 1];

void put(int at, float tap) { STORE_Y(dw, at, HAS_ADD ? scale * tap + beta * LOAD(add, at) : scale * tap); }

void main() {
    int index = int(flat_index());
    if (STAGED == 0 && index >= pairs) return;
    int pair = min(index, pairs - 1);
    float rows[T][R];
    [[unroll]] for (int part = 0; part < PARTS; part++) {
        float d[ROWS][MOST_T];
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
        float column[MOST_T];
        [[unroll]] for (int i = 0; i < T; i++) column[i] = rows[i][j];
        transform_weight_gradient(column);
        [[unroll]] for (int i = 0; i < R; i++) {
            if (STAGED == 0) {
                put((pair * R + i) * R + j, column[i]);
            } else {
                taps[(int(gl_LocalInvocationID.x) * R + i) * R + j] = column[i];
            }
        }
    }
    if (STAGED == 0) return;
    barrier();
    int first = int(flat_group()) * STAGED;
    int count = min(STAGED, pairs - first) * TAPS;
    for (int at = int(gl_LocalInvocationID.x); at < count; at += STAGED) put(first * TAPS + at, taps[at]);
}
