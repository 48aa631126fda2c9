#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "indices.glsl"
#include "combine.glsl"

// Updates of one element lie along the axis: where they combine, an invocation has them all and takes them in order.
void main() {
    uint row = flat_index();
    if (row >= invocations) return;
    uint from = 0;
    uint to = 0;
    for (uint d = RANK; d > 0; d--) {
        uint q = d > 1 ? row / n[d - 1] : 0u;
        from += (row - q * n[d - 1]) * from_stride[d - 1];
        to += (row - q * n[d - 1]) * y_stride[d - 1];
        row = q;
    }
    for (uint k = 0; k < steps; k++) {
        uint j = from + k * from_step;
        int at;
        INDEX_OF(indices, j, n_axis, at)
        if (at < 0) continue;
        uint i = to + uint(at) * axis_stride;
        STORE(y, i, combine(COMBINE, COMBINE == 0 ? LOAD(updates, j) : LOAD(y, i), LOAD(updates, j)));
    }
}
