// What convolutions by cooperative matrices share: rows of a tile are output channels of a group, columns the pixels of
// all images. SCATTER puts results TO_SH rows and TO_SW columns apart into planes of to_h x to_w, zeros between them.
// With SPLIT_K > 1, which goes with no SCATTER, sums are left as they are: y is scratch of [SPLIT_K][output] in f32.
#include "conv2d.glsl"
#include "cooperative.glsl"
#include "divided.glsl"

int first_of_slice = 0;  // in slices, of the one that this invocation sums

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

#ifndef REDUCE
const bool SCATTER = TO_SH > 0;

vec4 finish4(vec4 sums, Channel channel, vec4 residual) {
    return vec4(finish(sums[0], channel, residual[0]), finish(sums[1], channel, residual[1]),
                finish(sums[2], channel, residual[2]), finish(sums[3], channel, residual[3]));
}

// What the epilogue of eight outputs loads; rows and columns past the end load those of the last.
struct Added8 {
    Channel channel;
    uvec4 residual;
};

Added8 added8(int group, int row, int pixel) {
    int c = group * out_group() + min(row, out_group() - 1);
    uvec4 residual = uvec4(0u);
#ifdef RESIDUAL
    int low = place_in_y(c, image_and_pixel(min(pixel, all_columns() - Y_WORD)));
    if (Y_WORD == 8) {
        residual = residual8[low / 8];
    } else {
        int high = place_in_y(c, image_and_pixel(min(pixel + 4, all_columns() - Y_WORD)));
        residual = uvec4(residual4[low / 4], residual4[high / 4]);
    }
#endif
    return Added8(channel_of(c), residual);
}

// Eight outputs of channel ``row`` of the group, for the pixels from ``pixel`` on; planes are whole words of Y_WORD.
void store8(int group, int row, int pixel, vec4 low, vec4 high, Added8 added) {
    if (!is_output(row, pixel)) return;
    int c = group * out_group() + row;
    ivec2 at = image_and_pixel(pixel);
    int to = place_in_y(c, at);
    bool has_high = Y_WORD == 8 || is_output(row, pixel + 4);
    int high_to = Y_WORD == 8 || at.y + 4 < oh * ow ? to + 4 : place_in_y(c, ivec2(at.x + 1, 0));
    if (SPLIT_K > 1) {
        slices4[(first_of_slice + to) / 4] = low;
        if (has_high) slices4[(first_of_slice + high_to) / 4] = high;
        return;
    }
    uvec2 low_bits = rounded4(finish4(low, added.channel, from_bits4(added.residual.xy)));
    uvec2 high_bits = rounded4(finish4(high, added.channel, from_bits4(added.residual.zw)));
    if (Y_WORD == 8) {
        y8[to / 8] = uvec4(low_bits, high_bits);
    } else {
        y4[to / 4] = low_bits;
        if (has_high) y4[high_to / 4] = high_bits;
    }
}

// Where the first channel has what is stored for a column, -1 where it stands for no pixel; SCATTER: the rows and
// columns that a result stands for, and whether it is the first of its row.
struct Column {
    int first;
    int rows, columns;
    bool begins;
};

Column column_of(int column) {
    ivec2 at = image_and_pixel(column);
    if (column >= all_columns() || at.y >= oh * ow) return Column(-1, 0, 0, false);
    if (!SCATTER) return Column(place_in_y(0, at), 1, 1, true);
    ivec2 corner = row_and_column(at.y) * ivec2(TO_SH, TO_SW);
    return Column((at.x * c_out * to_h + corner.x) * to_w + corner.y, min(TO_SH, to_h - corner.x),
                  min(TO_SW, to_w - corner.y), corner.y == 0);
}

void store_single(int at, uint bits) { STORE_BITS(y, at, bits); }

// A result and the zeros behind it in its row. Of two columns a lane stores a word: where that begins at an odd place
// it has the zero before the result, and leaves the one behind it to the next lane, which there is: rows that begin at
// odd places are of odd length.
void store_row(int at, uint bits, Column column) {
    if (TO_SW == 2) {
        bool odd = (at & 1) != 0;
        if (odd ? column.begins : column.columns == 1) {
            store_single(at, bits);
        } else {
            y2[at >> 1] = odd ? bits << 16 : bits;
        }
    } else {
        store_single(at, bits);
        for (int j = 1; j < column.columns; j++) store_single(at + j, 0u);
    }
}

// Results of a column in rows of the group that are ``step`` apart, those below ``limit``.
void store4(int group, int row, int step, int limit, Column column, vec4 sums) {
    if (column.first < 0) return;
    limit = min(limit, out_group());
    if (row >= limit) return;
    int c = group * out_group() + row;
    int plane = SCATTER ? to_h * to_w : oh * ow;
    int at = column.first + c * plane;
    if (SPLIT_K > 1) {
        [[unroll]] for (int q = 0; q < 4; q++) {
            if (row + q * step < limit) slices[first_of_slice + at + q * step * plane] = sums[q];
        }
        return;
    }
    // Clamped rather than tested, so that all loads are in flight at once.
    Channel channels[4];
    float residuals[4];
    [[unroll]] for (int q = 0; q < 4; q++) {
        int rows_on = min(q * step, limit - 1 - row);
        channels[q] = channel_of(c + rows_on);
        residuals[q] = SCATTER ? 0.0 : residual_at(at + rows_on * plane);
    }
    uint bits[4];
    [[unroll]] for (int q = 0; q < 4; q++) {
        bits[q] = rounded2(vec2(finish(sums[q], channels[q], residuals[q]), 0.0)) & 0xFFFFu;
    }
    if (TO_SW == 2 && to_w % 2 == 0) {
        [[unroll]] for (int q = 0; q < 4; q++) {
            if (row + q * step < limit) {
                int word = (at + q * step * plane) / 2;
                y2[word] = bits[q];
                [[unroll]] for (int i = 1; i < TO_SH; i++) {
                    if (i < column.rows) y2[word + i * (to_w / 2)] = 0u;
                }
            }
        }
    } else {
        [[unroll]] for (int q = 0; q < 4; q++) {
            if (row + q * step < limit) {
                int from = at + q * step * plane;
                if (SCATTER) {
                    store_row(from, bits[q], column);
                    [[unroll]] for (int i = 1; i < TO_SH; i++) {
                        if (i < column.rows) store_row(from + i * to_w, 0u, column);
                    }
                } else {
                    store_single(from, bits[q]);
                }
            }
        }
    }
}

#define ADDED8 Added8
#define LOAD_ADDED8(row, col) added8(group, block_row * BM + (row), block_col * BN + (col))
#define STORE8(row, col, low, high, added) \
    store8(group, block_row * BM + (row), block_col * BN + (col), low, high, added)
#define COLUMN_STATE(col) Column column = column_of(block_col * BN + (col));
#define STORE_COLUMN4(row, step, limit, col, sums) \
    store4(group, block_row * BM + (row), step, block_row * BM + (limit), column, sums)
#endif
