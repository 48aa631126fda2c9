#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "divided.glsl"
#include "channels_last.glsl"
#extension GL_EXT_control_flow_attributes : require

// What channels_last.comp makes, of planes that are whole words of WORD pixels, 8 or 4, with every row and column of
// the input in its place: a lane reads such a word of eight channels, which are WORD words of eight channels in
// registers, and no shared memory is needed. ACROSS neighbours have neighbouring 8-wide vectors of the same pixels.
// Later workgroups write the zeros: rows without input, then what is beside it in the others.

const int LANES = 256;
const int PIXELS = LANES / ACROSS;  // words of them, of a workgroup

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int vec8s = vec8s_of(in_group);
    int all = groups * vec8s;
    int blocks = (all + ACROSS - 1) / ACROSS;
    int words = h * w / WORD;
    int copying = (n * words + PIXELS - 1) / PIXELS * blocks;
    int index = int(flat_group());

    if (index >= copying) {
        int across = last_h - rows;
        int beside = last_w - columns;
        int zeros = across * last_w + rows * beside;
        int item = (index - copying) * LANES + lane;
        if (item >= n * zeros * all) return;
        int place = item / all;
        int at = place % zeros;
        int row = at / last_w;
        int y = row < top ? row : row + rows;
        int x = at % last_w;
        if (row >= across) {
            at -= across * last_w;
            y = top + at / beside;
            x = at % beside;
            x = x < left ? x : x + columns;
        }
        y8[place_of((place / zeros * last_h + y) * last_w + x, item % all, n * last_h * last_w, all)] = uvec4(0u);
        return;
    }

    int vec8 = index % blocks * ACROSS + lane % ACROSS;
    int word = index / blocks * PIXELS + lane / ACROSS;
    if (vec8 >= all || word >= n * words) return;
    ivec2 image = divided(word, words, plane_factor, plane_shift);
    ivec2 row = divided(image.y * WORD, w, w_factor, w_shift);
    int group = GROUPED ? vec8 / vec8s : 0;
    int c = (vec8 - group * vec8s) * 8;
    int from = ((image.x * groups + group) * in_group + c) * words + image.y;

    uvec4 read[8];
    [[unroll]] for (int q = 0; q < 8; q++) {
        read[q] = uvec4(0u);
        if (WHOLE || c + q < in_group) {
            if (WORD == 8) {
                read[q] = x8[from + q * words];
            } else {
                read[q].xy = x4[from + q * words];
            }
        }
    }
    int y = row.x + pt;
    int x = row.y + pl;
    [[unroll]] for (int p = 0; p < WORD; p++) {
        uvec4 made;
        [[unroll]] for (int q = 0; q < 4; q++) {
            uint low = read[2 * q][p / 2];
            uint high = read[2 * q + 1][p / 2];
            made[q] = p % 2 == 0 ? (low & 0xFFFFu) | high << 16 : low >> 16 | (high & 0xFFFF0000u);
        }
        if (uint(y) < uint(last_h) && uint(x) < uint(last_w)) {
            y8[place_of((image.x * last_h + y) * last_w + x, vec8, n * last_h * last_w, all)] = made;
        }
        if (++x == w + pl) {
            x = pl;
            y++;
        }
    }
}
