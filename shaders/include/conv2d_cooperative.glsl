// What convolutions by cooperative matrices share: rows of a tile are output channels of a group, columns the pixels of all
// images. SPREAD puts results to_sh rows and to_sw columns apart into planes of to_h x to_w, zeros between them.
// Constants from 19 to 23 are each shader's.
#define MORE_PUSH                                          \
    int last_h, last_w, last_sh, last_sw;                  \
    uint plane_factor, plane_shift, row_factor, row_shift; \
    uint eights_factor, eights_shift;                      \
    int to_h, to_w, to_sh, to_sw;
#include "conv2d.glsl"
#include "cooperative.glsl"
#include "divided.glsl"

layout(constant_id = 18) const int Y_WORD = 1;
layout(constant_id = 24) const bool SPREAD = false;

layout(set = 0, binding = 3) WRITEONLY restrict buffer Y8 { uvec4 y8[]; };
layout(set = 0, binding = 3) WRITEONLY restrict buffer Y4 { uvec2 y4[]; };

int out_group() { return c_out / groups; }

bool is_output(int row, int pixel) { return row < out_group() && pixel < n * oh * ow; }

// A pixel of all images as the image and the pixel in it, and that as row and column.
ivec2 image_and_pixel(int pixel) { return divided(pixel, oh * ow, plane_factor, plane_shift); }
ivec2 row_and_column(int pixel) { return divided(pixel, ow, row_factor, row_shift); }

// Where output channel c has it.
int place_in_y(int c, ivec2 at) { return (at.x * c_out + c) * (oh * ow) + at.y; }

vec4 finish4(vec4 sums, Channel channel, int at) {
    return vec4(finish(sums[0], channel, residual_at(at)), finish(sums[1], channel, residual_at(at + 1)),
                finish(sums[2], channel, residual_at(at + 2)), finish(sums[3], channel, residual_at(at + 3)));
}

// Eight outputs of channel ``row`` of the group, for the pixels from ``pixel`` on; planes are whole words of Y_WORD.
void store8(int group, int row, int pixel, vec4 low, vec4 high) {
    if (!is_output(row, pixel)) return;
    int c = group * out_group() + row;
    Channel channel = channel_of(c);
    ivec2 at = image_and_pixel(pixel);
    int to = place_in_y(c, at);
    if (Y_WORD == 8) {
        y8[to / 8] = rounded8(finish4(low, channel, to), finish4(high, channel, to + 4));
    } else {
        y4[to / 4] = rounded4(finish4(low, channel, to));
        if (is_output(row, pixel + 4)) {
            to = at.y + 4 < oh * ow ? to + 4 : place_in_y(c, ivec2(at.x + 1, 0));
            y4[to / 4] = rounded4(finish4(high, channel, to));
        }
    }
}

void store1(int group, int row, int pixel, float sum) {
    if (!is_output(row, pixel)) return;
    int c = group * out_group() + row;
    ivec2 at = image_and_pixel(pixel);
    int to = place_in_y(c, at);
    float value = finish(sum, channel_of(c), residual_at(to));
    if (SPREAD) {
        ivec2 corner = row_and_column(at.y) * ivec2(to_sh, to_sw);
        int plane = (at.x * c_out + c) * to_h;
        for (int i = corner.x; i < min(corner.x + to_sh, to_h); i++) {
            for (int j = corner.y; j < min(corner.y + to_sw, to_w); j++) {
                STORE_Y(y, (plane + i) * to_w + j, ivec2(i, j) == corner ? value : 0.0);
            }
        }
    } else {
        STORE_Y(y, to, value);
    }
}

#define STORE8(row, col, low, high) store8(group, block_row * BM + (row), block_col * BN + (col), low, high)
#define STORE1(row, col, sum) store1(group, block_row * BM + (row), block_col * BN + (col), sum)
