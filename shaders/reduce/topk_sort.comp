#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// A step of a bitonic sort: two pairs, a distance apart, in the order of the block of a power of two that they lie in.
void main() {
    uint i = flat_index();
    if (i >= exchanges) return;
    uint low = (i & (apart - 1)) | ((i & ~(apart - 1)) << 1);
    uint high = low | apart;
    uvec2 p = pairs[low];
    uvec2 q = pairs[high];
    bool is_after = p.x > q.x || (p.x == q.x && p.y > q.y);
    if (is_after == ((low & block) == 0)) {
        pairs[low] = q;
        pairs[high] = p;
    }
}
