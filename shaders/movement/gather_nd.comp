#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "indices.glsl"

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
