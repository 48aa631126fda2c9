#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require
#include "reduction.glsl"

// One output from what the tiles along its segment came to, always in the same order: LANES lanes of a workgroup share
// an output, each combining every LANES-th tile, and the first combines theirs. Parts are [batch][tile][slot][row],
// where a tile has a slot for each of the segments that it touches (tile_reduce.glsl), outputs [batch][segments /
// lines][row][lines]. Parts begin at ``base``: before them may be those of another reduction.
const uint MAX = 1, MIN = 2, NORM = 4;  // as reduced.glsl has them

shared float shares[LANES * OUTPUTS];  // no Select: an Adreno driver gets those wrong (ncnn#6972)

float combined(float p, float q) {
    return FUNCTION == MAX ? larger(p, q) : FUNCTION == MIN ? smaller(p, q) : p + q;
}

void main() {
    int output_in_group = int(gl_LocalInvocationID.x) % OUTPUTS;
    int lane = int(gl_LocalInvocationID.x) / OUTPUTS;
    int index = int(flat_group()) * OUTPUTS + output_in_group;
    bool inside = index < total;
    int at = inside ? index : 0;
    int row = at % rows;
    int segment = at / rows % segments;
    int first = segment * extent / block;
    int last = ((segment + 1) * extent - 1) / block;
    int batch = at / rows / segments * tiles;

    float value = FUNCTION == MAX ? LOWEST : FUNCTION == MIN ? HIGHEST : 0.0;
    for (int t = first + lane; t <= last; t += LANES) {
        int slot = segment - t * block / extent;
        value = combined(value, parts[base + ((batch + t) * slots + slot) * rows + row]);
    }
    if (LANES > 1) {
        shares[lane * OUTPUTS + output_in_group] = value;
        barrier();
        for (int i = 1; i < LANES; i++) {
            if (lane == 0) value = combined(value, shares[i * OUTPUTS + output_in_group]);
        }
    }
    segment = at / rows;
    int to = (segment / lines * rows + row) * lines + segment % lines;
    if (inside && lane == 0) STORE_Y(y, to, FUNCTION == NORM ? sqrt(value) : value / divisor);
}
