#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// A matrix of rows x k, with any strides, as tiles of TILE rows: out[row / TILE][k][row % TILE], the rows of the
// last tile beyond the matrix filled with 0. A kernel then reads TILE neighbours at an address that is uniform.
layout(constant_id = 3) const uint TILE = 8;

layout(push_constant) uniform Push { uint rows, k, row_stride, k_stride; };

layout(set = 0, binding = 0) readonly restrict buffer Src { ELEM src[]; };
layout(set = 0, binding = 1) writeonly restrict buffer Dst { ELEM dst[]; };

void main() {
    uint index = flat_index();
    uint tiles = (rows + TILE - 1) / TILE;
    if (index >= tiles * k * TILE) return;
    uint row = index / (TILE * k) * TILE + index % TILE;
    uint ki = index / TILE % k;
    dst[index] = row < rows ? src[row * row_stride + ki * k_stride] : FROM_F32(0.0);
}
