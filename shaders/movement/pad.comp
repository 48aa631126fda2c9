#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "walk.glsl"

// Index of x for index i of y less the padding before it; -1 where y holds the fill value.
int source(int i, int size) {
    if (MODE == 0) return i >= 0 && i < size ? i : -1;
    if (MODE == 2) return clamp(i, 0, size - 1);
    if (MODE == 3) {
        if (i >= 0 && i < size) return i;  // most, and divisions are slow
        int beyond = i < 0 ? (-1 - i) % size : i % size;
        return i < 0 ? size - 1 - beyond : beyond;
    }
    i = abs(i);
    return i < size ? i : 2 * (size - 1) - i;
}

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint row = walk_row(index, chunk);
    int lane = int(index - row * chunk);
    uint to = row * n[RANK - 1];
    int inner = x_n[RANK - 1];
    int from = 0;
    int stride = inner;
    bool inside = true;
    for (uint d = RANK - 1; d > 0; d--) {
        uint q = d > 1 ? row / n[d - 1] : 0u;
        int i = source(int(row - q * n[d - 1]) - before[d - 1], x_n[d - 1]);
        inside = inside && i >= 0;
        from += i * stride;
        stride *= x_n[d - 1];
        row = q;
    }
    for (uint k = 0; k < ITEMS; k++) {
        int o = lane + int(k * chunk);
        if (o >= int(n[RANK - 1])) continue;
        int i = source(o - before[RANK - 1], inner);
#ifdef DTYPE_i64
        VALUE value = uvec2(fill, fill_high);
#else
        VALUE value = FROM_WORD(fill);
#endif
        if (inside && i >= 0) value = LOAD(x, from + i);
        STORE(y, to + o, value);
    }
}
