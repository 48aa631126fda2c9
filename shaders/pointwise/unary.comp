#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define EVERY_FUNCTION
#include "activation.glsl"

layout(constant_id = 3) const uint FUNCTION = 0;
layout(constant_id = 4) const uint ITEMS = 1;

layout(set = 0, binding = 0) readonly restrict buffer X { ELEM x[]; };
layout(set = 0, binding = 1) WRITEONLY restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint count;
    uint chunk;
    float a;
    float b;
};

void main() {
    uint index = flat_index();
    if (index >= chunk) return;
    for (uint k = 0; k < ITEMS; k++) {
        uint i = index + k * chunk;
        if (i < count) STORE(y, i, activate(FUNCTION, LOAD(x, i), a, b));
    }
}
