#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "indices.glsl"
#include "combine.glsl"

layout(constant_id = 4) const uint RANK = 1;
layout(constant_id = 5) const uint COMBINE = 0;

layout(set = 0, binding = 0) readonly restrict buffer Indices { int indices[]; };
layout(set = 0, binding = 1) readonly restrict buffer Updates { ELEM updates[]; };
layout(set = 0, binding = 2) restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint invocations;
    uint steps, from_step;  // updates of an invocation, and from one to the next
    uint n_axis, axis_stride;
    uint n[8];
    uint from_stride[8];
    uint y_stride[8];  // 0 along the axis
};

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
