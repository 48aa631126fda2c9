#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require
#include "epilogue.glsl"

// The sum of SPLIT_K slices, always in the same order, then bias and activation.

void main() {
    uint index = flat_index();
    if (index >= total) return;
    float sum = 0.0;
    for (uint s = 0; s < SPLIT_K; s++) sum += slices[s * total + index];
    Channel channel = channel_at(int(index / plane % channels), int(channels));
    channel.offset *= beta;
    STORE_Y(y, index, finished(sum, channel, act_a, act_b, residual_at(int(index))));
}
