#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

void main() {
    uint index = flat_index();
    if (index >= total) return;
    uint place = index / RANK;
    uint row = place / places * RANK + index - place * RANK;
    uint rest = place % places;
    float sum = LOAD(theta, row * (RANK + 1) + RANK);
    for (uint j = 0; j < RANK; j++) {
        uint extent = n[RANK - 1 - j];
        uint i = rest % extent;
        rest /= extent;
        bool by_corners = ALIGN_CORNERS && extent > 1;
        float at = by_corners ? 2.0 * float(i) / float(extent - 1) : float(2 * i + 1) / float(extent);
        sum += LOAD(theta, row * (RANK + 1) + j) * (at - 1.0);
    }
    STORE(y, index, sum);
}
