#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

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
