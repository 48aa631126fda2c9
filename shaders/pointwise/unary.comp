#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define EVERY_FUNCTION
#include "activation.glsl"

void main() {
    uint index = flat_index();
    if (index >= chunk) return;
    for (uint k = 0; k < ITEMS; k++) {
        uint i = index + k * chunk;
        if (i < count) STORE(y, i, activate(FUNCTION, LOAD(x, i), a, b));
    }
}
