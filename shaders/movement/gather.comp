#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint row = index / chunk;
    uint lane = index - row * chunk;
    uint outer = row / n_indices;
    uint j = row - outer * n_indices;
    int at = indices[WIDE ? 2 * j : j];
    bool inside = at < int(n_axis) && at >= -int(n_axis);
    if (WIDE) inside = inside && indices[2 * j + 1] == (at >> 31);
    uint from = (outer * n_axis + uint(at < 0 ? at + int(n_axis) : at)) * inner;
#ifdef DTYPE_i64
    VALUE outside = uvec2(outside_low, outside_high);
#else
    VALUE outside = FROM_WORD(outside_low);
#endif
    for (uint k = 0; k < ITEMS; k++) {
        uint i = lane + k * chunk;
        if (i < inner) STORE(y, row * inner + i, inside ? LOAD(x, from + i) : outside);
    }
}
