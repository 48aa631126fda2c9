// What is multiplied with the weights of nbits.glsl, and where it goes.
#include "epilogue.glsl"

// Four neighbours of a row of a from step ``at`` on, 0 behind its end: b may have anything there.
vec4 steps_of(int row, int at) {
    int from = row * k + at;
    if (A_VEC4) return at < k ? LOAD4(a4, from / 4) : vec4(0.0);
    vec4 v;
    [[unroll]] for (int q = 0; q < 4; q++) v[q] = at + q < k ? LOAD(a, from + q) : 0.0;
    return v;
}

void store(int row, int column, float sum) {
    STORE(y, row * n + column, finished(sum, Channel(offset_at(column), 0.0), act_a, act_b));
}
