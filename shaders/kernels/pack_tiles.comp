#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// groups x rows x outer x inner elements, with any strides, as [groups][rows / TILE][outer][inner_padded][TILE], zeros
// beyond both ends. A kernel then reads TILE neighbours at an address that is uniform, or whole slices in a row.
layout(constant_id = 3) const uint TILE = 8;

layout(push_constant) uniform Push {
    uint groups, rows, outer, inner, inner_padded;
    uint group_stride, row_stride, outer_stride, inner_stride;
};

layout(set = 0, binding = 0) readonly restrict buffer Src { ELEM src[]; };
layout(set = 0, binding = 1) WRITEONLY restrict buffer Dst { ELEM dst[]; };

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
