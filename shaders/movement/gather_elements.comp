#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "indices.glsl"

void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint from = 0;
    uint row = i;
    for (uint d = RANK; d > 0; d--) {
        uint q = d > 1 ? row / n[d - 1] : 0u;
        from += (row - q * n[d - 1]) * x_stride[d - 1];
        row = q;
    }
    int at;
    INDEX_OF(indices, i, n_axis, at)
#ifdef DTYPE_i64
    VALUE outside = uvec2(outside_low, outside_high);
#else
    VALUE outside = FROM_WORD(outside_low);
#endif
    STORE(y, i, at < 0 ? outside : LOAD(x, from + uint(at) * axis_stride));
}
