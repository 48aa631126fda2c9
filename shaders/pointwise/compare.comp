#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef DTYPE_i64
#include "int64.glsl"
#define LESS(p, q) less64(p, q)
#else
#define LESS(p, q) ((p) < (q))
#endif

bool holds(VALUE p, VALUE q) {
    switch (FUNCTION) {
    case 0: return p == q;
    case 1: return LESS(p, q);
    case 2: return LESS(p, q) || p == q;
    case 3: return LESS(q, p);
    }
    return LESS(q, p) || p == q;
}

// One invocation makes one word, which is four results; bytes past the end are 0.
void main() {
    uint word = flat_index();
    if (word >= (count + 3) / 4) return;
    uint packed = 0u;
    for (uint k = 0; k < 4; k++) {
        uint row = word * 4 + k;
        if (row >= count) break;
        int from_a = 0;
        int from_b = 0;
        for (uint d = RANK; d > 0; d--) {
            uint q = d > 1 ? row / n[d - 1] : 0u;
            int i = int(row - q * n[d - 1]);
            from_a += i * a_stride[d - 1];
            from_b += i * b_stride[d - 1];
            row = q;
        }
        packed |= uint(holds(LOAD(a, from_a), LOAD(b, from_b))) << (8u * k);
    }
    y[word] = packed;
}
