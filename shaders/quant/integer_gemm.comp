#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer_conv.glsl"
#include "dot.glsl"

// Convolution as a product of matrices: rows are the output channels of a group, columns the pixels of all images, and
// words of four input channels at one tap are what is summed over. A workgroup makes ROWS x COLUMNS outputs from
// k-tiles of DEPTH words in shared memory, an invocation TR rows x 4 neighbouring columns, which are one word of bytes.
// weight is packed [group][tile of ROWS][tap][channel / 4][row] (integer_pack.comp).
const int LOCAL = ROWS / TR * (COLUMNS / 4);

shared uint row_words[DEPTH * ROWS];
shared uint column_words[DEPTH * COLUMNS];

void main() {
    int pixels = oh * ow;
    int in_group = c_in / groups;
    int out_group = c_out / groups;
    int quads = (in_group + 3) / 4;
    int steps = kh * kw * quads;
    int row_tiles = (out_group + ROWS - 1) / ROWS;
    int column_tiles = (n * pixels + COLUMNS - 1) / COLUMNS;
    int index = int(flat_group());
    if (index >= groups * row_tiles * column_tiles) return;
    int tile = index / column_tiles;
    int group = tile / row_tiles;
    int column0 = index % column_tiles * COLUMNS;
    int lane = int(gl_LocalInvocationID.x);
    int zero = x_zero();

    // The column that this invocation loads; one past the last is outside the image.
    int column = column0 + lane % COLUMNS;
    int image = column / pixels;
    int iy0 = column < n * pixels ? column % pixels / ow * sh - pt : h;
    int ix0 = column % pixels % ow * sw - pl;
    int plane = image * c_in + group * in_group;

    int acc[TR * 4];
    [[unroll]] for (int i = 0; i < TR * 4; i++) acc[i] = 0;
    int loaded = 0;  // the sum of what this invocation loads
    int my_row = lane / (COLUMNS / 4) * TR;
    int my_column = lane % (COLUMNS / 4) * 4;
    for (int step0 = 0; step0 < steps; step0 += DEPTH) {
        for (int d = lane / COLUMNS; d < DEPTH; d += LOCAL / COLUMNS) {
            uint bytes4 = 0u;
            if (step0 + d < steps) {
                int tap = (step0 + d) / quads;
                int ci0 = ((step0 + d) - tap * quads) * 4;
                int iy = iy0 + tap / kw * dh;
                int ix = ix0 + tap % kw * dw;
                bool inside = iy >= 0 && iy < h && ix >= 0 && ix < w;
                [[unroll]] for (int k = 0; k < 4; k++) {
                    int at = ((plane + ci0 + k) * h + iy) * w + ix;
                    bool there = ci0 + k < in_group;
                    uint value = inside && there ? byte_of(x[at >> 2] ^ flips(X_SIGNED), uint(at)) : uint(zero & 0xFF);
                    if (there) bytes4 |= value << (8 * k);
                }
                loaded += sum_of_bytes(bytes4);
            }
            column_words[d * COLUMNS + lane % COLUMNS] = bytes4;
        }
        for (int i = lane; i < DEPTH * ROWS; i += LOCAL) {
            row_words[i] = step0 * ROWS + i < steps * ROWS ? weight[(tile * steps + step0) * ROWS + i] : 0u;
        }
        barrier();
        for (int d = 0; d < DEPTH; d++) {
            uint a[TR];
            uint b[4];
            [[unroll]] for (int i = 0; i < TR; i++) a[i] = row_words[d * ROWS + my_row + i];
            [[unroll]] for (int j = 0; j < 4; j++) b[j] = column_words[d * COLUMNS + my_column + j];
            ADD_PRODUCTS(TR, a, b, acc)
        }
        barrier();
    }
    int y_zero = channels[c_out].x;
    int x_sum[4];
    [[unroll]] for (int j = 0; j < 4; j++) x_sum[j] = 0;
    if (channels[c_out].y != 0) {  // weights with zero points: the sums of columns, of those that loaded them
        column_words[lane] = uint(loaded);
        barrier();
        [[unroll]] for (int j = 0; j < 4; j++) {
            for (int i = my_column + j; i < LOCAL; i += COLUMNS) x_sum[j] += int(column_words[i]);
        }
    }
    [[unroll]] for (int i = 0; i < TR; i++) {
        int row = tile % row_tiles * ROWS + my_row + i;
        if (row < out_group) {
            int co = group * out_group + row;
            ivec4 channel = channels[co];
            uint result = 0u;
            [[unroll]] for (int j = 0; j < 4; j++) {
                int p = column0 + my_column + j;
                uint value = finished(acc[4 * i + j] - zero * channel.y - channel.x * x_sum[j], channel, y_zero);
                int at = (p / pixels * c_out + co) * pixels + p % pixels;
                if (RESULT == 0) {
                    if (p < n * pixels) y[at] = value;
                } else {
                    result |= value << (8 * j);
                    if (j == 3 && p < n * pixels) y[at >> 2] = result;
                }
            }
        }
    }
}
