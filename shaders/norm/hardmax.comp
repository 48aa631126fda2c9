#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main() {
    uint line = flat_index();
    if (line >= lines) return;
    uint first = line / inner * inner * length + line % inner;
    uint best = 0;
    float most = LOAD(x, first);
    for (uint k = 1; k < length; k++) {
        float value = LOAD(x, first + k * inner);
        if (isnan(most)) break;
        if (isnan(value) || value > most) {
            most = value;
            best = k;
        }
    }
    for (uint k = 0; k < length; k++) STORE(y, first + k * inner, k == best ? 1.0 : 0.0);
}
