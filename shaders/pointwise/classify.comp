#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "bits.glsl"

const uint NOT = 0, IS_NAN = 1, IS_INF = 2, IS_POSITIVE_INF = 3, IS_NEGATIVE_INF = 4;

// By bits: compilers may hold that there are no NaNs.
bool holds(uint bits) {
    uint size = bits & 0x7FFFFFFFu;
    switch (FUNCTION) {
    case IS_NAN: return size > 0x7F800000u;
    case IS_INF: return size == 0x7F800000u;
    case IS_POSITIVE_INF: return bits == 0x7F800000u;
    case IS_NEGATIVE_INF: return bits == 0xFF800000u;
    }
    return false;
}

// One invocation makes one word, which is four results; bytes past the end are 0.
void main() {
    uint word = flat_index();
    if (word >= (count + 3) / 4) return;
    uint packed = 0u;
    for (uint k = 0; k < 4; k++) {
        uint i = word * 4 + k;
        if (i >= count) break;
#ifdef VALUE_IS_FLOAT
        bool result = holds(floatBitsToUint(LOAD(x, i)));
#else
        bool result = FUNCTION == NOT ? byte_of(LOAD(x, word), k) == 0u : holds(LOAD(x, i));
#endif
        packed |= uint(result) << (8u * k);
    }
    y[word] = packed;
}
