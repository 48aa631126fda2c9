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
const uint HEIGHT = uint((ROWS - 1) * M + WINDOW);
const uint WIDTH = uint((COLUMNS - 1) * M + WINDOW);
const uint AREA = HEIGHT * WIDTH;
const uint ELEMENTS = uint(CHANNELS) * AREA;
const uint PLANE = AREA / 2u * 2u + 1u;
const uint LANES = gl_WorkGroupSize.x;
const uint TOGETHER = 8;  // loads of a lane that are on their way at a time

shared float planes[uint(CHANNELS) * PLANE];

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
    int channels_here = min(channels - first_channel, CHANNELS);
    int image_at = (image * channels + first_channel) * h * w;
    for (uint from = uint(lane); from < ELEMENTS; from += LANES * TOGETHER) {
        float loaded[TOGETHER];
        [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
            uint channel = (from + i * LANES) / AREA;
            uint in_plane = (from + i * LANES) % AREA;
            ivec3 at = ivec3(channel, y0 + int(in_plane / WIDTH), x0 + int(in_plane % WIDTH));
            bool inside = all(lessThan(uvec3(at), uvec3(channels_here, h, w)));
            int in_x = image_at + (at.x * h + at.y) * w + at.z;
            float value = LOAD(x, inside ? in_x : 0);  // by all lanes: no branches between the loads
            loaded[i] = inside ? value : 0.0;
        }
        [[unroll]] for (uint i = 0; i < TOGETHER; i++) {
            uint at = from + i * LANES;
            if (at < ELEMENTS) planes[at / AREA * PLANE + at % AREA] = loaded[i];
        }
    }
    barrier();

    int in_group = channels / groups;
    int in_row = (in_group + 3) / 4 * 4;
    int point_step = groups * count * in_row;
    [[dont_unroll]] for (uint of = uint(lane); of < uint(CHANNELS * ROWS * COLUMNS); of += LANES) {
        uint in_block = of % uint(CHANNELS);
        int row = int(of / uint(CHANNELS) / uint(COLUMNS));
        int column = int(of / uint(CHANNELS) % uint(COLUMNS));
        int tile = (image * tiles_y + first_row + row) * tiles_x + first_column + column - first;
        ivec3 place = ivec3(in_block, first_row + row, first_column + column);
        if (!all(lessThan(place, ivec3(channels_here, tiles_y, tiles_x))) || tile < 0 || tile >= count) continue;
        uint at = in_block * PLANE + uint(row * M) * WIDTH + uint(column * M);
        float d[WINDOW][MOST_T];
        [[unroll]] for (int i = 0; i < WINDOW; i++) {
            [[unroll]] for (int j = 0; j < WINDOW; j++) d[i][j] = planes[at + uint(i) * WIDTH + uint(j)];
            if (GRADIENT) {
                transform_output_gradient(d[i]);
            } else {
                transform_input(d[i]);
            }
        }
        int channel = first_channel + int(in_block);
        int to = (channel / in_group * count + tile) * in_row + channel % in_group;
        [[unroll]] for (int j = 0; j < T; j++) {
            float line[MOST_T];
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
