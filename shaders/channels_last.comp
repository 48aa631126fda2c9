#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require

// NCHW to words of eight neighbouring channels of a pixel: [pixels of all images][group][channels / 8], zeros past the
// last channel of a group. A workgroup turns SIDE pixels by SIDE channels in shared memory, so that lanes read neighbouring
// pixels and write neighbouring channels.
layout(push_constant) uniform Push {
    int pixels, plane;
    int groups, in_group;
};

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) WRITEONLY restrict buffer Y { uvec4 y8[]; };

const int SIDE = 64, LANES = 256, EIGHTS = SIDE / 8, LOADS = SIDE * EIGHTS / LANES;
const int LINE = EIGHTS + 1;

shared uvec4 tile[SIDE * LINE];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int eights = (in_group + 7) / 8;
    int all = groups * eights;
    int columns = (all + EIGHTS - 1) / EIGHTS;
    int group = int(flat_group());
    if (group >= (pixels + SIDE - 1) / SIDE * columns) return;
    int first_pixel = group / columns * SIDE;
    int first_eight = group % columns * EIGHTS;

    uint bits[LOADS * 8];
    [[unroll]] for (int i = 0; i < LOADS; i++) {
        int pixel = first_pixel + lane % SIDE;
        int eight = first_eight + i * (LANES / SIDE) + lane / SIDE;
        bool ok = pixel < pixels && eight < all;
        int c = eight % eights * 8;
        int at = (pixel / plane * groups * in_group + eight / eights * in_group + c) * plane + pixel % plane;
        [[unroll]] for (int q = 0; q < 8; q++) bits[i * 8 + q] = ok && c + q < in_group ? LOAD(x, at + q * plane) : 0u;
    }
    [[unroll]] for (int i = 0; i < LOADS; i++) {
        uvec4 eight = uvec4(bits[i * 8], bits[i * 8 + 2], bits[i * 8 + 4], bits[i * 8 + 6]);
        eight |= uvec4(bits[i * 8 + 1], bits[i * 8 + 3], bits[i * 8 + 5], bits[i * 8 + 7]) << 16;
        tile[lane % SIDE * LINE + i * (LANES / SIDE) + lane / SIDE] = eight;
    }
    barrier();
    [[unroll]] for (int i = 0; i < LOADS; i++) {
        int index = lane + i * LANES;
        int pixel = first_pixel + index / EIGHTS;
        int eight = first_eight + index % EIGHTS;
        if (pixel < pixels && eight < all) y8[pixel * all + eight] = tile[index / EIGHTS * LINE + index % EIGHTS];
    }
}
