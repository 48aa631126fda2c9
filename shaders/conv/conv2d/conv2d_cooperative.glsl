// What convolutions by cooperative matrices share: rows of a tile are output channels of a group, columns the pixels of
// all images. SCATTER puts results TO_SH rows and TO_SW columns apart into planes of to_h x to_w, zeros between them.
// With SPLIT_K > 1, which goes with no SCATTER, sums are left as they are: y is scratch of [SPLIT_K][output] in f32.
#include "conv2d.glsl"
#ifndef REDUCE
const bool SCATTER = TO_SH > 0;
const int OUT_VEC = SCATTER ? 1 : Y_WORD;
#endif
#include "cooperative.glsl"
#include "divided.glsl"

int first_of_slice = 0;  // in slices, of the one that this invocation sums

int out_group() { return c_out / groups; }

// Columns that the pixels of an image take, and those of all.
int plane_columns() { return PADDED ? (oh * ow + 7) / 8 * 8 : oh * ow; }
int all_columns() { return n * plane_columns(); }

// A column as the image and the pixel in it, and that as row and column.
ivec2 image_and_pixel(int column) { return divided(column, plane_columns(), plane_factor, plane_shift); }
ivec2 row_and_column(int pixel) { return divided(pixel, ow, row_factor, row_shift); }

// Where output channel c has it.
int place_in_y(int c, ivec2 at) { return (at.x * c_out + c) * (oh * ow) + at.y; }

#ifndef REDUCE
// Where the first channel has a column of the tile, -1 where that stands for no pixel; SCATTER: the rows and columns
// that a result stands for, and whether it is the first of its row.
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

// Outputs that a lane stores: the word of OUT_VEC elements that has the first, the channel of that, and how many rows
// of the group are behind it, below 0 where it is none of them. Planes are whole words.
struct Place {
    uint word;
    int channel, rows_behind;
    Column column;
};

Place place_of(int group, int row, int column) {
    Column found = column_of(column);
    int plane = SCATTER ? to_h * to_w : oh * ow;
    int channel = group * out_group() + min(row, out_group() - 1);
    return Place(uint(max(found.first, 0) + channel * plane) / uint(OUT_VEC), channel, out_group() - 1 - row, found);
}

uint word_behind(Place place, int rows) {
    return place.word + rows * (uint(SCATTER ? to_h * to_w : oh * ow) / uint(OUT_VEC));
}

// What the epilogue of OUT_VEC outputs loads; rows past the end load those of the last. By singles nothing is loaded
// ahead.
struct Added {
    Channel channel;
    uvec4 residual;
};

Added added_to(Place place, int rows) {
    if (OUT_VEC == 1) return Added(Channel(0.0, 0.0), uvec4(0u));
    rows = clamp(rows, 0, max(place.rows_behind, 0));
    uvec4 residual = uvec4(0u);
#ifdef RESIDUAL
    uint word = word_behind(place, rows);
    if (OUT_VEC == 8) {
        residual = residual8[word];
    } else {
        residual.xy = residual4[word];
    }
#endif
    return Added(channel_of(place.channel + rows), residual);
}

vec4 finish4(vec4 sums, Channel channel, vec4 residual) {
    return vec4(finish(sums[0], channel, residual[0]), finish(sums[1], channel, residual[1]),
                finish(sums[2], channel, residual[2]), finish(sums[3], channel, residual[3]));
}

void store_words(uint word, vec4 low, vec4 high, Added added) {
    if (SPLIT_K > 1) {
        uint of_slice = uint(first_of_slice) / 4u + word * uint(OUT_VEC / 4);
        slices4[of_slice] = low;
        if (OUT_VEC == 8) slices4[of_slice + 1u] = high;
        return;
    }
    uvec2 low_bits = rounded4(finish4(low, added.channel, from_bits4(added.residual.xy)));
    if (OUT_VEC == 8) {
        y8[word] = uvec4(low_bits, rounded4(finish4(high, added.channel, from_bits4(added.residual.zw))));
    } else {
        y4[word] = low_bits;
    }
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

// Results of a column in four rows of the group, ``rows`` behind the place and from there OUT_AT_ONCE apart, of which
// there are those below ``left``.
void store_singles(Place place, int rows, int left, vec4 sums) {
    left = min(left, place.rows_behind - rows + 1);
    int at = int(word_behind(place, rows));
    int step = int(word_behind(place, OUT_AT_ONCE) - place.word);
    if (SPLIT_K > 1) {
        [[unroll]] for (int q = 0; q < 4; q++) {
            if (q * OUT_AT_ONCE < left) slices[first_of_slice + at + q * step] = sums[q];
        }
        return;
    }
    // Clamped rather than tested, so that all loads are in flight at once.
    Channel channels[4];
    float residuals[4];
    [[unroll]] for (int q = 0; q < 4; q++) {
        int on = min(q * OUT_AT_ONCE, left - 1);
        channels[q] = channel_of(place.channel + rows + on);
        residuals[q] = SCATTER ? 0.0 : residual_at(int(word_behind(place, rows + on)));
    }
    uint bits[4];
    [[unroll]] for (int q = 0; q < 4; q++) {
        bits[q] = rounded2(vec2(finish(sums[q], channels[q], residuals[q]), 0.0)) & 0xFFFFu;
    }
    Column column = place.column;
    [[unroll]] for (int q = 0; q < 4; q++) {
        if (q * OUT_AT_ONCE < left) {
            int from = at + q * step;
            if (TO_SW == 2 && to_w % 2 == 0) {
                y2[from / 2] = bits[q];
                [[unroll]] for (int i = 1; i < TO_SH; i++) {
                    if (i < column.rows) y2[(from + i * to_w) / 2] = 0u;
                }
            } else if (SCATTER) {
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

#define PLACE_OF(row, column) place_of(group, block_row * BM + (row), block_col * BN + (column))
#define STORE_OUTPUTS(place, on, left, low, high, added)           \
    if (place.column.first >= 0 && (on) <= place.rows_behind) {    \
        if (OUT_VEC == 1) {                                        \
            store_singles(place, on, left, low);                   \
        } else {                                                   \
            store_words(word_behind(place, on), low, high, added); \
        }                                                          \
    }
#endif
