#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "indices.glsl"

// An element of the updates goes to the row of its own behind the first row of its batch.
void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint row = index / chunk;
    uint lane = index - row * chunk;
    uint outer = row / n_rows;
    uint r = row - outer * n_rows;
    int first = 0;
    INDEX_OF(at, WHOLE ? 0u : outer / outer_of_batch, n_axis, first)
    if (first < 0) return;
    uint to = uint(first) + r;
    if (CIRCULAR && to >= n_axis) to -= n_axis;
    if (to >= n_axis) return;
    for (uint k = 0; k < ITEMS; k++) {
        uint i = lane + k * chunk;
        if (i < inner) STORE(y, (outer * n_axis + to) * inner + i, LOAD(updates, row * inner + i));
    }
}
