#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

shared vec2 found[gl_WorkGroupSize.x];

vec2 wider(vec2 a, vec2 b) {
    return vec2(b.x < a.x ? b.x : a.x, b.y > a.y ? b.y : a.y);
}

// One workgroup: scale and zero point that take the whole range to 0 to 255.
void main() {
    uint lane = gl_LocalInvocationID.x;
    vec2 mine = vec2(0.0);
    for (uint i = lane; i < lanes; i += gl_WorkGroupSize.x) mine = wider(mine, ends[i]);
    found[lane] = mine;
    barrier();
    if (lane != 0) return;
    for (uint i = 1; i < gl_WorkGroupSize.x; i++) mine = wider(mine, found[i]);
    float width = mine.x == mine.y ? 1.0 : mine.y - mine.x;
    float step = divide_exactly(width, 255.0);
    scale[0] = step;
    zero[0] = uint(saturated(-divide_exactly(mine.x, step), 0, false));
}
