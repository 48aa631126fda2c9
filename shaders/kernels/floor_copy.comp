#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Vectors that one invocation copies, ``chunk`` apart so that neighbours stay side by side.

void main() {
    uint index = flat_index();
    if (index >= chunk) return;
    for (uint k = 0; k < ITEMS; k++) y[index + k * chunk] = x[index + k * chunk];
}
