#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// The first pairs of each line as the elements that they stand for.
void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint lane = i % inner;
    uint place = i / inner % k;
    uint outer = i / inner / k;
    uint at = pairs[(outer * inner + lane) * padded + place].y;
    STORE(values, i, LOAD(x, (outer * length + at) * inner + lane));
    indices[i] = uvec2(at, 0u);
}
