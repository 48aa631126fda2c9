// What all matmul shaders share: y[batch] = act(alpha a[batch] b[batch] + beta bias), every matrix with its own
// first element and strides in elements, so that transposes, broadcast batches and swapped roles are the same code.
#extension GL_EXT_control_flow_attributes : require
#include "epilogue.glsl"

// First elements of the matrices of one flat batch index: x in a, y in b, z in the output.
ivec3 batch_origin(int index) {
    ivec3 origin = ivec3(a_base, b_base, y_base + index * m * n);
    [[unroll]] for (int i = 3; i >= 0; i--) {
        if (batch[i] == 1) continue;
        int at = index % batch[i];
        index /= batch[i];
        origin.xy += at * ivec2(a_batch[i], b_batch[i]);
    }
    return origin;
}

int batches() { return batch[0] * batch[1] * batch[2] * batch[3]; }

// beta bias at a row (by_row) or at a column; 0 where the other one carries the bias.
float bias_at(int index, bool by_row) {
    return HAS_BIAS && by_row == BIAS_BY_ROW ? beta * offset_at(index) : 0.0;
}

// Slopes lie along the rows, as the channels of a convolution do.
Channel channel_of(int row) { return Channel(bias_at(row, true), slope_at(row, m)); }

// ``offset`` is what the column adds to that of the row; ``residual`` as residual_at() has it for the place in y.
float finished_with(float acc, Channel row, float offset, float residual) {
    return finished(alpha * acc, Channel(row.offset + offset, row.slope), act_a, act_b, residual);
}

float finished(float acc, Channel row, float offset) { return finished_with(acc, row, offset, 0.0); }

#ifndef REDUCE
void store(int origin, int row, int col, float acc, Channel channel, float offset) {
    int to = origin + row * y_row + col * y_col;
    STORE_Y(y, to, finished_with(acc, channel, offset, residual_at(to)));
}
#endif
