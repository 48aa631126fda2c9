#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_EXT_control_flow_attributes : require
#define EPILOGUE_ID 3
#define EPILOGUE_BINDING 1
#include "epilogue.glsl"

// The sum of SPLITS partial results, always in the same order, then bias and activation.
layout(constant_id = 5) const uint SPLITS = 2;

layout(push_constant) uniform Push {
    uint total, channels, plane;
    float act_a, act_b, beta;
};

layout(set = 0, binding = 0) readonly restrict buffer Parts { float parts[]; };
layout(set = 0, binding = 2) WRITEONLY restrict buffer Y { Y_ELEM y[]; };

void main() {
    uint index = flat_index();
    if (index >= total) return;
    float sum = 0.0;
    for (uint s = 0; s < SPLITS; s++) sum += parts[s * total + index];
    Channel channel = channel_at(int(index / plane % channels), int(channels));
    channel.offset *= beta;
    STORE_Y(y, index, finished(sum, channel, act_a, act_b, residual_at(int(index))));
}
