#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

const uint F32 = 0, I32 = 1, I64 = 2, F16 = 3, BF16 = 4;  // _INDEX in vkconv/ops/movement/one_hot.py

float number(uint j) {
    if (INDEX == F32) return uintBitsToFloat(indices[j]);
    uint bits = (indices[j / 2] >> (16 * (j & 1))) & 0xFFFFu;
    return INDEX == F16 ? unpackHalf2x16(bits).x : uintBitsToFloat(bits << 16);
}

// The index that element j holds, counted from the front; depth where it is outside.
uint place(uint j) {
    int i;
    bool whole = true;
    if (INDEX != I32 && INDEX != I64) {
        float v = number(j);
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
