#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

const uint F32 = 0, I32 = 1, I64 = 2;
layout(constant_id = 3) const uint INDEX = 0;

layout(set = 0, binding = 0) readonly restrict buffer Indices { uint indices[]; };
layout(set = 0, binding = 1) readonly restrict buffer Values { ELEM values[]; };
layout(set = 0, binding = 2) WRITEONLY restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push { uint total, depth, inner; };

// The index that element j holds, counted from the front; depth where it is outside.
uint place(uint j) {
    int i;
    bool whole = true;
    if (INDEX == F32) {
        float v = uintBitsToFloat(indices[j]);
        whole = abs(v) < 2147483648.0 && floor(v) == v;
        i = whole ? int(v) : 0;
    } else {
        i = int(indices[INDEX == I64 ? 2 * j : j]);
        if (INDEX == I64) whole = int(indices[2 * j + 1]) == i >> 31;
    }
    if (!whole || i >= int(depth) || i < -int(depth)) return depth;
    return uint(i < 0 ? i + int(depth) : i);
}

void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint line = i / inner;
    uint outer = line / depth;
    uint at = line - outer * depth;
    STORE(y, i, LOAD(values, place(outer * inner + i - line * inner) == at ? 1 : 0));
}
