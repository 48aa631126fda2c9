#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer_result.glsl"

// Sums, which are bound as x, become bytes: four of a word per invocation.
void main() {
    uint word = flat_index();
    uint count = uint(n * c_out) * uint(oh * ow);
    if (word >= (count + 3) / 4) return;
    uint result = 0u;
    for (uint k = 0; k < 4; k++) {
        uint index = 4 * word + k;
        if (index >= count) break;
        int co = int(index / uint(oh * ow)) % c_out;
        result |= finished(int(x[index]), channels[co], channels[c_out].x) << (8 * k);
    }
    y[word] = result;
}
