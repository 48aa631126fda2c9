#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "indices.glsl"
#include "combine.glsl"

// Where updates combine, an invocation has one element of every slice and takes the tuples in order.
void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint first = index / inner;
    uint lane = index - first * inner;
    for (uint k = 0; k < steps; k++) {
        uint tuple = first + k;
        uint to = lane;
        bool inside = true;
        for (uint d = 0; d < DEPTH; d++) {
            int at;
            INDEX_OF(indices, tuple * DEPTH + d, n[d], at)
            inside = inside && at >= 0;
            to += uint(at) * y_stride[d];
        }
        uint j = tuple * inner + lane;
        if (inside) STORE(y, to, combine(COMBINE, COMBINE == 0 ? LOAD(updates, j) : LOAD(y, to), LOAD(updates, j)));
    }
}
