#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

layout(set = 0, binding = 0) readonly restrict buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly restrict buffer Ends { vec2 ends[]; };

layout(push_constant) uniform Push {
    uint count;
    uint lanes;
};

// The least and the largest of 0 and every element that falls to an invocation but NaN.
void main() {
    uint lane = flat_index();
    if (lane >= lanes) return;
    vec2 found = vec2(0.0);
    for (uint i = lane; i < count; i += lanes) {
        float v = x[i];
        if (isnan(v)) continue;
        if (v < found.x) found.x = v;
        if (v > found.y) found.y = v;
    }
    ends[lane] = found;
}
