#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "nbits.glsl"

// The weights as elements, n x k: four values of a word per invocation.
void main() {
    int quads = row_words * QUADS;
    int index = int(flat_index());
    int column = index / quads;
    if (column >= n) return;
    int word = index % quads / QUADS;
    int quad = index % QUADS;
    int step = word * VALUES + quad * 4;
    float middle = zero_at(column, block_of(word));
    vec4 v = weights_of(b[column * row_words + word], quad, middle, scale_at(column, block_of(word)));
    int to = column * k + step;
    if (W_VEC4) {
        if (step < k) STORE4(w4, to / 4, v);
        return;
    }
    [[unroll]] for (int q = 0; q < 4; q++) {
        if (step + q < k) STORE(w, to + q, v[q]);
    }
}
