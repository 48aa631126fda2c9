#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(constant_id = 3) const uint ITEMS = 1;
layout(constant_id = 4) const bool WIDE = false;  // 64-bit indices, read as two words

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) readonly restrict buffer Indices { int indices[]; };
layout(set = 0, binding = 2) WRITEONLY restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint invocations;
    uint chunk;
    uint n_indices;
    uint n_axis;
    uint inner;
    uint outside_low, outside_high;  // written where an index is out of range
};

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
