#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#if defined(DTYPE_i32) || defined(DTYPE_i64)
// The functions of INTEGERS in vkconv/ops/pointwise/unary.py, by their ids.
const uint RELU = 1, ABS = 23, NEG = 24;  // else the sign
#if defined(DTYPE_i64)
#include "int64.glsl"
uvec2 integer(uvec2 x) {
    bool below = negative64(x);
    if (FUNCTION == RELU) return below ? uvec2(0u) : x;
    if (FUNCTION == ABS) return abs64(x);
    if (FUNCTION == NEG) return negate64(x);
    return below ? uvec2(0xFFFFFFFFu) : uvec2(x == uvec2(0u) ? 0u : 1u, 0u);
}
#else
int integer(int x) {
    if (FUNCTION == RELU) return max(x, 0);
    if (FUNCTION == ABS) return abs(x);
    return FUNCTION == NEG ? -x : sign(x);
}
#endif
#define VALUE_OF(x) integer(x)
#else
#define EVERY_FUNCTION
#include "activation.glsl"
#define VALUE_OF(x) activate(FUNCTION, x, a, b)
#endif

void main() {
    uint index = flat_index();
    if (index >= chunk) return;
    for (uint k = 0; k < ITEMS; k++) {
        uint i = index + k * chunk;
        if (i < count) STORE(y, i, VALUE_OF(LOAD(x, i)));
    }
}
