#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#ifdef DTYPE_i64
#include "int64.glsl"
#define ONE uvec2(1u, 0u)
#define SUM_OF(p, q) add64(p, q)
#define PRODUCT_OF(p, q) mul64(p, q)
#else
#define ONE VALUE(1)
#define SUM_OF(p, q) ((p) + (q))
#define PRODUCT_OF(p, q) ((p) * (q))
#endif

void main() {
    uint line = flat_index();
    if (line >= lines) return;
    uint first = line / inner * inner * length + line % inner;
    VALUE total = KIND == 0 ? VALUE(0) : ONE;
    for (uint k = 0; k < length; k++) {
        uint i = first + (REVERSE ? length - 1 - k : k) * inner;
        VALUE value = LOAD(x, i);
        if (EXCLUSIVE) STORE(y, i, total);
        total = KIND == 0 ? SUM_OF(total, value) : PRODUCT_OF(total, value);
        if (!EXCLUSIVE) STORE(y, i, total);
    }
}
