#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// Tiles of x, T on a side, or with GRADIENT of dy, M on a side, to their T x T products' operands with the channels in
// a row: v[T * T][group][count][channels of a group, to whole vec4], for ``count`` tiles from ``first`` on; what pads
// channels is not written. A workgroup takes CHANNELS neighbours of ROWS x COLUMNS tiles of an image. Their patch goes
// to shared memory along its rows, each element once, and from there to lanes by channels, of which neighbours store
// neighbouring elements. Planes there are of an odd number of elements: lanes read different banks.
const int WINDOW = GRADIENT ? M : T;
const int HEIGHT = (ROWS - 1) * M + WINDOW;
const int WIDTH = (COLUMNS - 1) * M + WINDOW;
const int AREA = HEIGHT * WIDTH;
const int PLANE = AREA / 2 * 2 + 1;
const int LANES = int(gl_WorkGroupSize.x);
const int TOGETHER = 4;  // loads of a lane that are on their way at a time

shared float planes[CHANNELS * PLANE];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int channel_blocks = (channels + CHANNELS - 1) / CHANNELS;
    int patches_x = (tiles_x + COLUMNS - 1) / COLUMNS;
    int patches_y = (tiles_y + ROWS - 1) / ROWS;
    int index = int(flat_group());
    if (index >= images * patches_y * patches_x * channel_blocks) return;
    int first_channel = index % channel_blocks * CHANNELS;
    index /= channel_blocks;
    int first_column = index % patches_x * COLUMNS;
    index /= patches_x;
    int first_row = index % patches_y * ROWS;
    int image = first / (tiles_y * tiles_x) + index / patches_y;

    int y0 = first_row * M - pt;
    int x0 = first_column * M - pl;
    int image_at = (image * channels + first_channel) * h * w;
    for (int from = lane; from < CHANNELS * AREA; from += LANES * TOGETHER) {
        float loaded[TOGETHER];
        [[unroll]] for (int i = 0; i < TOGETHER; i++) {
            int at = from + i * LANES;
            int iy = y0 + at % AREA / WIDTH;
            int ix = x0 + at % AREA % WIDTH;
            bool inside = at < CHANNELS * AREA && first_channel + at / AREA < channels && uint(iy) < uint(h);
            inside = inside && uint(ix) < uint(w);
            loaded[i] = inside ? LOAD(x, inside ? image_at + (at / AREA * h + iy) * w + ix : 0) : 0.0;
        }
        [[unroll]] for (int i = 0; i < TOGETHER; i++) {
            int at = from + i * LANES;
            if (at < CHANNELS * AREA) planes[at / AREA * PLANE + at % AREA] = loaded[i];
        }
    }
    barrier();

    int in_group = channels / groups;
    int in_row = (in_group + 3) / 4 * 4;
    int point_step = groups * count * in_row;
    [[dont_unroll]] for (int of = lane; of < CHANNELS * ROWS * COLUMNS; of += LANES) {
        int channel = first_channel + of % CHANNELS;
        int row = of / CHANNELS / COLUMNS;
        int column = of / CHANNELS % COLUMNS;
        int tile = (image * tiles_y + first_row + row) * tiles_x + first_column + column - first;
        bool there = first_row + row < tiles_y && first_column + column < tiles_x && channel < channels;
        if (!there || tile < 0 || tile >= count) continue;
        int at = of % CHANNELS * PLANE + row * M * WIDTH + column * M;
        float d[WINDOW][6];
        [[unroll]] for (int i = 0; i < WINDOW; i++) {
            [[unroll]] for (int j = 0; j < WINDOW; j++) d[i][j] = planes[at + i * WIDTH + j];
            if (GRADIENT) {
                transform_output_gradient(d[i]);
            } else {
                transform_input(d[i]);
            }
        }
        int to = (channel / in_group * count + tile) * in_row + channel % in_group;
        [[unroll]] for (int j = 0; j < T; j++) {
            float line[6];
            [[unroll]] for (int i = 0; i < WINDOW; i++) line[i] = d[i][j];
            if (GRADIENT) {
                transform_output_gradient(line);
            } else {
                transform_input(line);
            }
            [[unroll]] for (int i = 0; i < T; i++) v[(i * T + j) * point_step + to] = line[i];
        }
    }
}
