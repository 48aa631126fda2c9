#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "rows.glsl"
#include "math.glsl"

layout(constant_id = 3) const bool LOG = false;

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) writeonly restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint rows;
    uint count;
    uint inner;  // distance between the elements of a row
};

void main() {
    uint row = row_index();
    if (row >= rows) return;
    uint outer = row / inner;
    uint base = outer * count * inner + (row - outer * inner);
    uint lanes = lane_count();

    float peak = uintBitsToFloat(0xFF800000u);
    for (uint i = lane_index(); i < count; i += lanes) {
        float v = TO_F32(x[base + i * inner]);
        peak = isnan(peak) || peak > v ? peak : v;
    }
#define COMBINE(p, q) (isnan(p) || p > q ? p : q)
    ROW_REDUCE(peak)
#undef COMBINE

    float total = 0.0;
    for (uint i = lane_index(); i < count; i += lanes) total += exp_f32(TO_F32(x[base + i * inner]) - peak);
#define COMBINE(p, q) (p + q)
    ROW_REDUCE(total)
#undef COMBINE

    float log_total = LOG ? log_f32(total) : 0.0;
    float scale = 1.0 / total;
    for (uint i = lane_index(); i < count; i += lanes) {
        float v = TO_F32(x[base + i * inner]) - peak;
        y[base + i * inner] = FROM_F32(LOG ? v - log_total : exp_f32(v) * scale);
    }
}
