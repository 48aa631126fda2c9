#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "bits.glsl"

bool apply(bool p, bool q) {
    return FUNCTION == 0 ? p && q : FUNCTION == 1 ? p || q : FUNCTION == 2 ? p != q : p == q;
}

// One invocation makes one word, which is four results; bytes past the end are 0.
void main() {
    uint word = flat_index();
    if (word >= (count + 3) / 4) return;
    uint packed = 0u;
    for (uint k = 0; k < 4; k++) {
        uint row = word * 4 + k;
        if (row >= count) break;
        uint from_a = 0;
        uint from_b = 0;
        for (uint d = RANK; d > 0; d--) {
            uint q = d > 1 ? row / n[d - 1] : 0u;
            uint i = row - q * n[d - 1];
            from_a += i * uint(a_stride[d - 1]);
            from_b += i * uint(b_stride[d - 1]);
            row = q;
        }
        bool p = byte_of(LOAD(a, from_a >> 2), from_a) != 0u;
        bool q = byte_of(LOAD(b, from_b >> 2), from_b) != 0u;
        packed |= uint(apply(p, q)) << (8u * k);
    }
    STORE(y, word, packed);
}
