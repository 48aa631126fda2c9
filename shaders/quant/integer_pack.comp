#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "integer.glsl"

// Weights (groups, rows, in_group, taps) as signed bytes, 0 beyond the ends of all. QUADS: words of four channels,
// [group][tile of TILE rows][tap][channel / 4][row]; else bytes, [group][tile of TILE rows][channel][tap][row].

void main() {
    uint word = flat_index();
    if (word >= words) return;
    uint tiles = (rows + TILE - 1) / TILE;
    uint quads = (in_group + 3) / 4;
    uint result = 0u;
    for (uint k = 0; k < 4; k++) {
        uint place = QUADS ? word : 4 * word + k;
        uint row = place % TILE;
        place /= TILE;
        uint steps = QUADS ? taps * quads : taps * in_group;
        uint step = place % steps;
        place /= steps;
        row += place % tiles * TILE;
        uint group = place / tiles;
        uint tap = QUADS ? step / quads : step % taps;
        uint channel = QUADS ? step % quads * 4 + k : step / taps;
        if (row >= rows || channel >= in_group) continue;
        uint i = ((group * rows + row) * in_group + channel) * taps + tap;
        result |= byte_of(weight[i / 4] ^ flips(W_SIGNED), i) << (8 * k);
    }
    packed[word] = result;
}
