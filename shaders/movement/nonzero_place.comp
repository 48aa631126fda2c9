#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "nonzero.glsl"

// The indices of each element, one below the other in a column: those of the elements that are not zero come first.
void main() {
    uint i = flat_index();
    if (i >= runs) return;
    uint before = 0;
    uint nonzero = 0;
    for (uint other = 0; other < runs; other++) {
        uint found = counts[other];
        before += other < i ? found : 0u;
        nonzero += found;
    }
    uint end = min(total, (i + 1) * run);
    for (uint at = i * run; at < end; at++) {
        bool taken = is_nonzero(LOAD(x, at));
        uint column = taken ? before : nonzero + at - before;
        before += uint(taken);
        uint rest = at;
        for (int d = int(RANK) - 1; d >= 0; d--) {
            y[uint(d) * total + column] = uvec2(rest % n[d], 0u);
            rest /= n[d];
        }
    }
    if (i == 0) count[0] = uvec2(nonzero, 0u);
}
