#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "nonzero.glsl"

// The elements of each run that are not zero.
void main() {
    uint i = flat_index();
    if (i >= runs) return;
    uint end = min(total, (i + 1) * run);
    uint found = 0;
    for (uint at = i * run; at < end; at++) found += uint(is_nonzero(LOAD(x, at)));
    counts[i] = found;
}
