#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main() {
    uint index = flat_index();
    if (index >= total) return;
    int place[3];
    uint plane = index;
    for (int d = 2; d >= 0; d--) {
        uint q = plane / uint(image[d]);
        place[d] = int(plane - q * uint(image[d])) + before[d];
        plane = q;
    }
    int taps = kernel[0] * kernel[1] * kernel[2];
    uint count = uint(blocks[0] * blocks[1] * blocks[2]);
    float sum = 0.0;
    for (int tap = 0; tap < taps; tap++) {
        int k[3] = int[3](tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]);
        bool inside = true;
        int block = 0;
        for (int d = 0; d < 3; d++) {
            int first = place[d] - k[d] * dilation[d];
            int b = first / stride[d];
            inside = inside && first >= 0 && b * stride[d] == first && b < blocks[d];
            block = block * blocks[d] + b;
        }
        if (inside) sum += LOAD(x, (plane * uint(taps) + uint(tap)) * count + uint(block));
    }
    STORE(y, index, sum);
}
