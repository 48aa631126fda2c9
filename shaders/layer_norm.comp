#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"

layout(constant_id = 3) const bool HAS_BIAS = false;

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) readonly restrict buffer Scale { ELEM scale[]; };
layout(set = 0, binding = 2) readonly restrict buffer Bias { ELEM bias[]; };
layout(set = 0, binding = 3) writeonly restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint rows;
    uint count;
    float eps;
};

#define COMBINE(p, q) (p + q)

void main() {
    uint row = row_index();
    if (row >= rows) return;
    uint base = row * count;
    uint lanes = lane_count();

    float total = 0.0;
    for (uint i = lane_index(); i < count; i += lanes) total += TO_F32(x[base + i]);
    ROW_REDUCE(total)
    float mean = total / float(count);

    // Corrected two-pass algorithm (Chan, Golub and LeVeque 1983): differences to the rounded mean are exact where
    // the row is close together, so their own sum says how far that mean is off.
    float squares = 0.0;
    float drift = 0.0;
    for (uint i = lane_index(); i < count; i += lanes) {
        precise float d = TO_F32(x[base + i]) - mean;
        squares += d * d;
        drift += d;
    }
    ROW_REDUCE(squares)
    ROW_REDUCE(drift)
    drift = drift / float(count);
    float deviation = sqrt(squares / float(count) - drift * drift + eps);

    for (uint i = lane_index(); i < count; i += lanes) {
        precise float d = TO_F32(x[base + i]) - mean;
        float v = (d - drift) / deviation * TO_F32(scale[i]);
        y[base + i] = FROM_F32(HAS_BIAS ? v + TO_F32(bias[i]) : v);
    }
}
