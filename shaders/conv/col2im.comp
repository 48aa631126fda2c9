#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "blocks.glsl"

void main() {
    uint index = flat_index();
    if (index >= total) return;
    int place[3];
    uint plane = plane_of(index, place);
    int taps = kernel[0] * kernel[1] * kernel[2];
    uint count = uint(blocks[0] * blocks[1] * blocks[2]);
    float sum = 0.0;
    for (int tap = 0; tap < taps; tap++) {
        int block = block_at(place, tap);
        if (block >= 0) sum += LOAD_X(x, (plane * uint(taps) + uint(tap)) * count + uint(block));
    }
    STORE(y, first + index, sum);
}
