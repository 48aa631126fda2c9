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
layout(constant_id = 25) const bool PADDED = false;  // columns are counted as if planes were whole eights

layout(set = 0, binding = 3) WRITEONLY restrict buffer Y8 { uvec4 y8[]; };
layout(set = 0, binding = 3) WRITEONLY restrict buffer Y4 { uvec2 y4[]; };
layout(set = 0, binding = 3) WRITEONLY restrict buffer Y2 { uint y2[]; };

int out_group() { return c_out / groups; }

// Columns that the pixels of an image take, and those of all.
int plane_columns() { return PADDED ? (oh * ow + 7) / 8 * 8 : oh * ow; }
int all_columns() { return n * plane_columns(); }

bool is_output(int row, int column) { return row < out_group() && column < all_columns(); }

// A column as the image and the pixel in it, and that as row and column.
ivec2 image_and_pixel(int column) { return divided(column, plane_columns(), plane_factor, plane_shift); }
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

// Where the first channel has what is stored for a column, -1 where it stands for no pixel; SPREAD: its row and column.
struct Column {
    int first;
    ivec2 corner;
};

Column column_of(int column) {
    ivec2 at = image_and_pixel(column);
    if (column >= all_columns() || at.y >= oh * ow) return Column(-1, ivec2(0));
    if (!SPREAD) return Column(place_in_y(0, at), ivec2(0));
    ivec2 corner = row_and_column(at.y) * ivec2(to_sh, to_sw);
    return Column((at.x * c_out * to_h + corner.x) * to_w + corner.y, corner);
}

void store_single(int at, float value) { STORE_BITS(y, at, rounded2(vec2(value, 0.0)) & 0xFFFFu); }

// A result's row up to the next result: zeros behind it. Two elements are a word where they lie so.
void store_row(int at, int columns, float value) {
    if (columns == 2 && at % 2 == 0) {
        y2[at / 2] = rounded2(vec2(value, 0.0));
    } else {
        store_single(at, value);
        for (int j = 1; j < columns; j++) store_single(at + j, 0.0);
    }
}

// A row of zeros below it. Where words begin at odd places, one has the zero before it in the row as well, and leaves the
// one behind it to the next result.
void store_zeros(int at, int columns, int column) {
    if (to_sw == 2 && at % 2 != 0) {
        if (column > 0) {
            y2[at / 2] = 0u;
        } else {
            store_single(at, 0.0);
        }
        if (columns == 2 && column + 2 == to_w) store_single(at + 1, 0.0);
    } else {
        store_row(at, columns, 0.0);
    }
}

void store1(int group, int row, Column column, float sum) {
    if (row >= out_group() || column.first < 0) return;
    int c = group * out_group() + row;
    if (SPREAD) {
        int at = column.first + c * to_h * to_w;
        int columns = min(to_sw, to_w - column.corner.y);
        store_row(at, columns, finish(sum, channel_of(c)));
        for (int i = 1; i < min(to_sh, to_h - column.corner.x); i++) {
            store_zeros(at + i * to_w, columns, column.corner.y);
        }
    } else {
        int at = column.first + c * oh * ow;
        store_single(at, finish(sum, channel_of(c), residual_at(at)));
    }
}

#define STORE8(row, col, low, high) store8(group, block_row * BM + (row), block_col * BN + (col), low, high)
#define AT_COLUMN(col) Column column = column_of(block_col * BN + (col));
#define STORE1(row, col, sum) store1(group, block_row * BM + (row), column, sum)
