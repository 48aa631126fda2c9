#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Vectors that one invocation copies, ``chunk`` apart so that neighbours stay side by side.
layout(constant_id = 3) const uint ITEMS = 1;

layout(set = 0, binding = 0) readonly restrict buffer X { vec4 x[]; };
layout(set = 0, binding = 1) writeonly restrict buffer Y { vec4 y[]; };

layout(push_constant) uniform Push {
    uint chunk;
};

void main() {
    uint index = flat_index();
    if (index >= chunk) return;
    for (uint k = 0; k < ITEMS; k++) y[index + k * chunk] = x[index + k * chunk];
}
