#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "order.glsl"

// Each element of a line as a key of its place in the order and its index, then pairs behind all of these, up to a power
// of two.
void main() {
    uint i = flat_index();
    if (i >= total) return;
    uint line = i / padded;
    uint at = i - line * padded;
    uvec2 pair = uvec2(0xFFFFFFFFu, at);
    if (at < length) {
        uint key = sort_key(LOAD(x, (line / inner * length + at) * inner + line % inner)).x;
        pair.x = LARGEST ? ~key : key;
    }
    pairs[i] = pair;
}
