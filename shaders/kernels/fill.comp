#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// One word everywhere. A workgroup writes ITEMS times as many as it has lanes, neighbouring lanes neighbouring ones.

void main() {
    uint at = flat_group() * gl_WorkGroupSize.x * ITEMS + gl_LocalInvocationID.x;
    for (uint k = 0; k < ITEMS; k++) {
        if (at < total) STORE(y, at, FROM_WORD(value));
        at += gl_WorkGroupSize.x;
    }
}
