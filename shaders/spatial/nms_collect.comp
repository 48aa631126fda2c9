#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// One row per invocation: those of boxes that were taken, one class after the other, then -1. The first one also counts
// them, though there be no row.
void main() {
    uint i = flat_index();
    if (lines * most == 0) {
        if (i == 0) count[0] = uvec2(0u);
        return;
    }
    if (i >= lines * most) return;
    uint line = i / most;
    uint at = i - line * most;
    uint before = 0;
    uint all = 0;
    for (uint other = 0; other < lines; other++) {
        uint taken = found[other];
        before += other < line ? taken : 0u;
        all += taken;
    }
    bool is_taken = at < found[line];
    uint row = is_taken ? before + at : all + line * most - before + at - found[line];
    uvec3 place = is_taken ? uvec3(line / classes, line % classes, found[lines + i]) : uvec3(0xFFFFFFFFu);
    for (uint d = 0; d < 3; d++) y[3 * row + d] = uvec2(place[d], is_taken ? 0u : 0xFFFFFFFFu);
    if (i == 0) count[0] = uvec2(all, 0u);
}
