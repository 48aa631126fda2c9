#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "divided.glsl"
#include "channels_last.glsl"
#include "transposed_tile.glsl"
#extension GL_EXT_control_flow_attributes : require

// NCHW to words of eight neighbouring channels of a pixel, [image][row][column][group][channels / 8], or by blocks of
// these (channels_last.glsl), zeros past the last channel of a group. Row y of what is made is row y * sh - pt of the
// input, columns alike, and zeros where that has none: it is padded, cropped or thinned on the way. A workgroup
// transposes SIDE pixels by SIDE channels in shared memory: lanes read neighbouring pixels and write neighbouring
// channels.

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int pixels = n * last_h * last_w;
    int vec8s = vec8s_of(in_group);
    int all = groups * vec8s;
    int columns = (all + VEC8S - 1) / VEC8S;
    int index = int(flat_group());
    if (index >= (pixels + SIDE - 1) / SIDE * columns) return;
    int first_pixel = index / columns * SIDE;
    int first_vec8 = index % columns * VEC8S;

    int pixel = first_pixel + lane % SIDE;
    ivec2 row = divided(pixel, last_w, w_factor, w_shift);
    ivec2 image = divided(row.x, last_h, h_factor, h_shift);
    int from_y = image.y * sh - pt;
    int from_x = row.y * sw - pl;
    bool inside = pixel < pixels && uint(from_y) < uint(h) && uint(from_x) < uint(w);
    int corner = (image.x * groups * in_group * h + from_y) * w + from_x;

    uint bits[LOADS * 8];
    [[unroll]] for (int i = 0; i < LOADS; i++) {
        int vec8 = first_vec8 + i * (LANES / SIDE) + lane / SIDE;
        int group = GROUPED ? vec8 / vec8s : 0;
        int c = (vec8 - group * vec8s) * 8;
        int at = corner + (group * in_group + c) * h * w;
        [[unroll]] for (int q = 0; q < 8; q++) {
            bits[i * 8 + q] = inside && vec8 < all && (WHOLE || c + q < in_group) ? LOAD(x, at + q * h * w) : 0u;
        }
    }
    STORE_TRANSPOSED(bits, lane)
    [[unroll]] for (int i = 0; i < LOADS; i++) {
        int word = lane + i * LANES;
        int to_pixel = first_pixel + word / VEC8S;
        int vec8 = first_vec8 + word % VEC8S;
        if (to_pixel < pixels && vec8 < all) {
            y8[place_of(to_pixel, vec8, pixels, all)] = tile[word / VEC8S * LINE + word % VEC8S];
        }
    }
}
