#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "divided.glsl"
#include "epilogue.glsl"
#include "winograd.glsl"

// One channel of TILES neighbouring tiles of outputs per invocation, M on a side each, from the T x T sums
// p[T * T][c_out][count]; see winograd_input.comp for the tiles. Bias and activation are applied here. Of two tiles
// (M is 2, count even, maybe more than there are before ``end``) pairs are loaded, and stored where rows are whole
// pairs. Sums of elements were scaled, see winograd.glsl.

// T x T sums of a tile to M x M outputs, in the first elements of the first M lines.
void transform_tile(inout float d[T][MOST_T]) {
    [[unroll]] for (int i = 0; i < T; i++) transform_output(d[i]);
    [[unroll]] for (int j = 0; j < M; j++) {
        float column[MOST_T];
        [[unroll]] for (int i = 0; i < T; i++) column[i] = d[i][j];
        transform_output(column);
        [[unroll]] for (int i = 0; i < M; i++) d[i][j] = column[i];
    }
}

void store_tile(int tile, int co, float d[T][MOST_T], Channel channel) {
    ivec2 row = divided(tile, tiles_x, x_factor, x_shift);
    ivec2 image = divided(row.x, tiles_y, y_factor, y_shift);
    int oy0 = image.y * M;
    int ox0 = row.y * M;
    int plane = (image.x * c_out + co) * oh * ow;
    bool pairs = TILES == 2 && ow % 2 == 0;
    [[unroll]] for (int i = 0; i < M; i++) {
        int from = plane + (oy0 + i) * ow + ox0;
        if (oy0 + i >= oh) continue;
        if (pairs) {
            float left = finished(d[i][0], channel, act_a, act_b, residual_at(from));
            float right = finished(d[i][1], channel, act_a, act_b, residual_at(from + 1));
            STORE_Y2(y2, from / 2, vec2(left, right));
        } else {
            [[unroll]] for (int j = 0; j < M; j++) {
                if (ox0 + j < ow) {
                    STORE_Y(y, from + j, finished(d[i][j], channel, act_a, act_b, residual_at(from + j)));
                }
            }
        }
    }
}

void main() {
    int index = int(flat_index()) * TILES;
    if (index >= c_out * count) return;
    ivec2 line = divided(index, count, count_factor, count_shift);
    int co = line.x;
    int tile = first + line.y;
    if (tile >= end) return;
    Channel channel = channel_at(co, c_out);
    float d[T][MOST_T];
    float next[T][MOST_T];
    [[unroll]] for (int i = 0; i < T; i++) {
        [[unroll]] for (int j = 0; j < T; j++) {
            int from = (i * T + j) * c_out * count + index;
            if (TILES == 2) {
                vec2 two = LOAD_X2(p2, from / 2) * SUM_SCALE;
                d[i][j] = two.x;
                next[i][j] = two.y;
            } else {
                d[i][j] = LOAD_X(p, from) * SUM_SCALE;
            }
        }
    }
    transform_tile(d);
    store_tile(tile, co, d, channel);
    if (TILES == 2 && tile + 1 < end) {
        transform_tile(next);
        store_tile(tile + 1, co, next, channel);
    }
}
