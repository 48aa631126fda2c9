#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "winograd.glsl"

// The 3 x 3 taps of one pair of channels per invocation to T x T weights, packed as pack_tiles.comp packs that many
// groups: u[T * T][c_out / TILE][c_in padded][TILE], zeros beyond both ends.

void main() {
    int index = int(flat_index());
    int size = (c_out + TILE - 1) / TILE * c_in_padded * TILE;
    if (index >= size) return;
    int co = index / (TILE * c_in_padded) * TILE + index % TILE;
    int ci = index / TILE % c_in_padded;
    bool inside = co < c_out && ci < c_in;
    int at = inside ? (co * c_in + ci) * 9 : 0;

    float rows[3][6];
    [[unroll]] for (int i = 0; i < 3; i++) {
        float g[3];
        [[unroll]] for (int j = 0; j < 3; j++) g[j] = inside ? LOAD(weight, at + i * 3 + j) : 0.0;
        transform_weight(g[0], g[1], g[2], rows[i]);
    }
    [[unroll]] for (int j = 0; j < T; j++) {
        float column[6];
        transform_weight(rows[0][j], rows[1][j], rows[2][j], column);
        [[unroll]] for (int i = 0; i < T; i++) u[(i * T + j) * size + index] = column[i];
    }
}
