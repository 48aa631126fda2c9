#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "epilogue.glsl"
#include "winograd.glsl"

// One channel of one tile of outputs per invocation, M on a side, from the T x T sums p[T * T][c_out][count]; see
// winograd_input.comp for the tiles. Bias and activation are applied here.

void main() {
    int index = int(flat_index());
    if (index >= c_out * count) return;
    int co = index / count;
    int tile = first + index % count;
    int image = tile / (tiles_y * tiles_x);
    int oy0 = tile / tiles_x % tiles_y * M;
    int ox0 = tile % tiles_x * M;
    int plane = (image * c_out + co) * oh * ow;
    Channel channel = channel_at(co, c_out);

    float d[T][6];
    [[unroll]] for (int i = 0; i < T; i++) {
        [[unroll]] for (int j = 0; j < T; j++) d[i][j] = p[(i * T + j) * c_out * count + index];
        transform_output(d[i]);
    }
    [[unroll]] for (int j = 0; j < M; j++) {
        float column[6];
        [[unroll]] for (int i = 0; i < T; i++) column[i] = d[i][j];
        transform_output(column);
        [[unroll]] for (int i = 0; i < M; i++) {
            if (oy0 + i < oh && ox0 + j < ow) {
                int to = plane + (oy0 + i) * ow + ox0 + j;
                STORE_Y(y, to, finished(column[i], channel, act_a, act_b, residual_at(to)));
            }
        }
    }
}
