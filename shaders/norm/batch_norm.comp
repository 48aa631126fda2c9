#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint plane = index / chunk;
    uint lane = index - plane * chunk;
    uint c = plane % channels;
    float slope = LOAD(scale, c) / sqrt(LOAD(var, c) + eps);
    float shift = LOAD(bias, c);
    float center = LOAD(mean, c);
    for (uint k = 0; k < ITEMS; k++) {
        uint i = lane + k * chunk;
        if (i >= inner) continue;
        uint at = plane * inner + i;
        STORE(y, at, (LOAD(x, at) - center) * slope + shift);
    }
}
