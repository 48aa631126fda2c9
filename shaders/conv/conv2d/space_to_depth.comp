#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "divided.glsl"
#extension GL_EXT_control_flow_attributes : require

// Blocks of BH x BW pixels of x (n, C, h, w) as channels of one pixel, [channel][row of the block][column]: row y of
// what is made begins at row y * BH - top of x, columns alike, and zeros are where x has none. An invocation makes all
// channels of a pixel, so that its neighbours read neighbouring pixels. LAST: as words of eight channels, [image][row]
// [column][channels / 8], zeros past the last channel, read by WORD pixels of a row, of which rows of x and of blocks,
// and ``left``, are whole numbers. Else as planes.

const int AREA = BH * BW;
const int CHANNELS = C * AREA;

void main() {
    int pixel = int(flat_index());
    int plane = to_h * to_w;
    if (pixel >= n * plane) return;
    ivec2 image = divided(pixel, plane, plane_factor, plane_shift);
    ivec2 block = divided(image.y, to_w, row_factor, row_shift);
    int y_top = block.x * BH - top;
    int x_left = block.y * BW - left;
    int corner = (image.x * C * h + y_top) * w + x_left;
#ifdef LAST
    const int VEC8S = (CHANNELS + 7) / 8;
    for (int vec8 = 0; vec8 < VEC8S; vec8++) {
        uvec4 made = uvec4(0u);
        [[unroll]] for (int q = 0; q < 8; q += WORD) {
            int c = vec8 * 8 + q;
            int row = c / BW % BH;
            int column = c % BW;
            bool inside = c < CHANNELS && uint(y_top + row) < uint(h) && uint(x_left + column) < uint(w);
            int from = corner + (c / AREA * h + row) * w + column;
            if (WORD == 4) {
                uvec2 four = inside ? x4[from / 4] : uvec2(0u);
                made[q / 2] = four.x;
                made[q / 2 + 1] = four.y;
            } else if (WORD == 2) {
                made[q / 2] = inside ? x2[from / 2] : 0u;
            } else {
                made[q / 2] |= (inside ? LOAD(x, from) : 0u) << (q % 2 * 16);
            }
        }
        y8[pixel * VEC8S + vec8] = made;
    }
#else
    int to = image.x * CHANNELS * plane + image.y;
    for (int c = 0; c < CHANNELS; c++) {
        int row = c / BW % BH;
        int column = c % BW;
        bool inside = uint(y_top + row) < uint(h) && uint(x_left + column) < uint(w);
        STORE(y, to, inside ? LOAD(x, corner + (c / AREA * h + row) * w + column) : 0u);
        to += plane;
    }
#endif
}
