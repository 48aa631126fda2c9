#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "divided.glsl"
#include "winograd.glsl"

// One channel of TILES neighbouring tiles of inputs per invocation, T on a side each, to their T x T products' left
// operands: v[T * T][c_in][count], for ``count`` tiles from ``first`` on, counted over images, rows and columns of
// tiles; zeros from tile ``end`` on. Of two tiles (count even) pairs are stored. PAIRED: rows of inputs and of tiles
// are whole pairs, and pairs are loaded. Elements are scaled, see winograd.glsl.

// Image, first row and first column of the window of a tile; an image below 0 where there is none.
ivec3 window_of(int tile) {
    ivec2 row = divided(tile, tiles_x, x_factor, x_shift);
    ivec2 image = divided(row.x, tiles_y, y_factor, y_shift);
    return tile < end ? ivec3(image.x, image.y * M - pt, row.y * M - pl) : ivec3(-1, 0, 0);
}

int place_of(int ci, ivec3 window) { return ((window.x * c_in + ci) * h + window.y) * w + window.z; }

void load_window(int ci, ivec3 window, out float d[T][MOST_T]) {
    int at = place_of(ci, window);
    [[unroll]] for (int i = 0; i < T; i++) {
        bool row_inside = window.x >= 0 && uint(window.y + i) < uint(h);
        [[unroll]] for (int j = 0; j < T; j++) {
            bool inside = row_inside && uint(window.z + j) < uint(w);
            d[i][j] = inside ? LOAD(x, inside ? at + i * w + j : 0) : 0.0;
        }
    }
}

// The windows of two tiles, the first of which is given, by pairs that are in the input or not as one.
void load_windows(int ci, ivec3 window, out float a[T][MOST_T], out float b[T][MOST_T]) {
    int odd = window.z & 1;
    int at = place_of(ci, window) - odd;
    [[unroll]] for (int i = 0; i < T; i++) {
        bool row_inside = window.x >= 0 && uint(window.y + i) < uint(h);
        vec2 pairs[4];
        [[unroll]] for (int j = 0; j < 4; j++) {
            bool inside = row_inside && uint(window.z - odd + 2 * j) < uint(w);
            pairs[j] = inside ? LOAD2(x2, inside ? (at + i * w) / 2 + j : 0) : vec2(0.0);
        }
        [[unroll]] for (int j = 0; j < 4; j++) {
            a[i][j] = odd == 0 ? pairs[j / 2][j % 2] : pairs[(j + 1) / 2][(j + 1) % 2];
            b[i][j] = odd == 0 ? pairs[j / 2 + 1][j % 2] : pairs[(j + 3) / 2][(j + 1) % 2];
        }
    }
}

void transform_window(inout float d[T][MOST_T]) {
    [[unroll]] for (int i = 0; i < T; i++) transform_input(d[i]);
    [[unroll]] for (int j = 0; j < T; j++) {
        float column[MOST_T];
        [[unroll]] for (int i = 0; i < T; i++) column[i] = d[i][j];
        transform_input(column);
        [[unroll]] for (int i = 0; i < T; i++) d[i][j] = column[i] * INPUT_SCALE;
    }
}

void main() {
    int index = int(flat_index()) * TILES;
    if (index >= c_in * count) return;
    ivec2 line = divided(index, count, count_factor, count_shift);
    ivec3 window = window_of(first + line.y);
    float d[T][MOST_T];
    float next[T][MOST_T];
    if (TILES == 2 && PAIRED) {
        load_windows(line.x, window, d, next);
    } else {
        load_window(line.x, window, d);
        if (TILES == 2) load_window(line.x, window_of(first + line.y + 1), next);
    }
    transform_window(d);
    if (TILES == 2) transform_window(next);
    [[unroll]] for (int i = 0; i < T; i++) {
        [[unroll]] for (int j = 0; j < T; j++) {
            int to = (i * T + j) * c_in * count + index;
            if (TILES == 2) {
                STORE_Y2(v2, to / 2, vec2(d[i][j], next[i][j]));
            } else {
                STORE_Y(v, to, d[i][j]);
            }
        }
    }
}
