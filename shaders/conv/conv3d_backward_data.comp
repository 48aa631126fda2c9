#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "blocks.glsl"

// One element of dx per invocation, which sums exactly the taps that reach it. w is [c_out][c_in / groups][taps], dy
// [image][c_out][blocks].

void main() {
    uint index = flat_index();
    if (index >= total) return;
    int place[3];
    uint plane = plane_of(index, place);
    int in_group = c_in / groups;
    int out_group = c_out / groups;
    int ci = int(plane % uint(c_in));
    int first = ci / in_group * out_group;
    int taps = kernel[0] * kernel[1] * kernel[2];
    int count = blocks[0] * blocks[1] * blocks[2];
    int dy_at = (int(plane / uint(c_in)) * c_out + first) * count;
    int w_at = (first * in_group + ci % in_group) * taps;
    float sum = 0.0;
    for (int tap = 0; tap < taps; tap++) {
        int block = block_at(place, tap);
        int channels = block >= 0 ? out_group : 0;
        for (int co = 0; co < channels; co++) {
            sum += LOAD(dy, dy_at + co * count + block) * LOAD(weight, w_at + co * in_group * taps + tap);
        }
    }
    STORE(dx, index, sum);
}
