#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "walk.glsl"
#include "bits.glsl"

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint row = walk_row(index, chunk);
    int lane = int(index - row * chunk);
    uint to = row * n[RANK - 1];
    int from_c = 0;
    int from_a = 0;
    int from_b = 0;
    for (uint d = RANK - 1; d > 0; d--) {
        uint q = d > 1 ? row / n[d - 1] : 0u;
        int i = int(row - q * n[d - 1]);
        from_c += i * c_stride[d - 1];
        from_a += i * a_stride[d - 1];
        from_b += i * b_stride[d - 1];
        row = q;
    }
    int inner = int(n[RANK - 1]);
    for (uint k = 0; k < ITEMS; k++) {
        int i = lane + int(k * chunk);
        if (i >= inner) continue;
        uint c = uint(from_c + i * c_stride[RANK - 1]);
        bool chosen = byte_of(condition[c >> 2], c) != 0u;
        STORE(y, to + i, chosen ? LOAD(a, from_a + i * a_stride[RANK - 1]) : LOAD(b, from_b + i * b_stride[RANK - 1]));
    }
}
