#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "common.glsl"

// Chains do not depend on each other, so that a multiply-add need not wait for the one before.
const uint CHAINS = 8;

void main() {
    uint index = flat_index();
    if (index >= count) return;
    float factor = a, addend = b;  // read here: some drivers read push constants anew at each use in a loop
    float v[CHAINS];
    [[unroll]] for (uint c = 0; c < CHAINS; c++) v[c] = float(index % 64u + c);
    for (uint i = 0; i < iterations; i++) {
        [[unroll]] for (uint k = 0; k < 4; k++) {
            [[unroll]] for (uint c = 0; c < CHAINS; c++) v[c] = v[c] * factor + addend;
        }
    }
    float sum = 0.0;
    [[unroll]] for (uint c = 0; c < CHAINS; c++) sum += v[c];
    y[index] = sum;
}
