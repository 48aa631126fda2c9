#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// An array [outer][lanes][rows][columns] of any strides as a texture: four neighbouring lanes a texel, a slice, with 0
// beyond the lanes and the columns. Slices lie one behind the other, or in two dimensions one below the other.
void main() {
    int index = int(flat_index());
    if (index >= total) return;
    int column = index % width;
    int row = index / width % rows;
    int layer = index / width / rows;
    int lane = layer % slices * 4;
    int source = layer / slices * outer_stride + lane * lane_stride + row * row_stride + column * column_stride;
    vec4 texel = vec4(0.0);
    for (int i = 0; i < 4; i++) {
        if (column < columns && lane + i < lanes) texel[i] = LOAD(x, source + i * lane_stride);
    }
#ifdef TEXTURE_2D
    imageStore(texels, ivec2(column, layer * rows + row), texel);
#else
    imageStore(texels, ivec3(column, row, layer), texel);
#endif
}
