#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "indices.glsl"

layout(constant_id = 4) const uint DEPTH = 1;  // indices in a tuple

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) readonly restrict buffer Indices { int indices[]; };
layout(set = 0, binding = 2) WRITEONLY restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint total, inner, tuples, batch_stride, outside_low, outside_high;
    uint n[8];
    uint x_stride[8];
};

void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint tuple = i / inner;
    uint from = tuple / tuples * batch_stride + i - tuple * inner;
    bool inside = true;
    for (uint d = 0; d < DEPTH; d++) {
        int at;
        INDEX_OF(indices, tuple * DEPTH + d, n[d], at)
        inside = inside && at >= 0;
        from += uint(at) * x_stride[d];
    }
#ifdef DTYPE_i64
    VALUE outside = uvec2(outside_low, outside_high);
#else
    VALUE outside = FROM_WORD(outside_low);
#endif
    STORE(y, i, outside);
    if (inside) STORE(y, i, LOAD(x, from));
}
