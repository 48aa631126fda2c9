#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "walk.glsl"

// With VEC4 all counts, strides and bases are in vec4.

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint row = walk_row(index, chunk);
    int lane = int(index - row * chunk);
    int from = x_base;
    int to = y_base;
    for (uint d = RANK - 1; d > 0; d--) {
        uint q = d > 1 ? row / n[d - 1] : 0u;
        int i = int(row - q * n[d - 1]);
        from += i * xs[d - 1];
        to += i * ys[d - 1];
        row = q;
    }
    int inner = int(n[RANK - 1]);
    for (uint k = 0; k < ITEMS; k++) {
        int i = lane + int(k * chunk);
        if (i >= inner) break;
        int source = from + i * xs[RANK - 1];
        int target = to + i * ys[RANK - 1];
        if (VEC4) STORE4(y4, target, LOAD4(x4, source));
        else STORE(y, target, LOAD(x, source));
    }
}
