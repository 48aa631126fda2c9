#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "order.glsl"

// One element per invocation: its place is the number of elements that come before it.
void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint line = i / inner;
    uint outer = line / length;
    uint at = line - outer * length;
    uint lane = i - line * inner;
    uint first = outer * length * inner + lane;
    VALUE value = LOAD(x, i);
    uvec2 own = sort_key(value);
    uint place = 0;
    for (uint j = 0; j < length && place < k; j++) {
        uvec2 other = sort_key(LOAD(x, first + j * inner));
        bool before = LARGEST ? key_below(own, other) : key_below(other, own);
        place += uint(before || (other == own && j < at));
    }
    if (place >= k) return;
    uint to = (outer * k + place) * inner + lane;
    STORE(values, to, value);
    indices[to] = uvec2(at, 0u);
}
