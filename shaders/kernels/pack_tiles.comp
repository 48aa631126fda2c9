#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// groups x rows x outer x inner elements, with any strides, as [groups][rows / TILE][outer][inner_padded][TILE], zeros
// beyond both ends. A kernel then reads TILE neighbours at an address that is uniform, or whole k-tiles in a row.

void main() {
    uint index = flat_index();
    uint tiles = (rows + TILE - 1) / TILE;
    if (index >= groups * tiles * outer * inner_padded * TILE) return;
    uint at = index / TILE;
    uint i = at % inner_padded;
    at /= inner_padded;
    uint o = at % outer;
    at /= outer;
    uint row = at % tiles * TILE + index % TILE;
    uint group = at / tiles;
    bool ok = row < rows && i < inner;
    uint from = group * group_stride + row * row_stride + o * outer_stride + i * inner_stride;
    STORE(dst, index, ok ? LOAD(src, from) : 0.0);
}
