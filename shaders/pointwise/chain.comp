#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "walk.glsl"
#include "activation.glsl"
#include "extremes.glsl"

// Words of vkconv/ops/pointwise/chain.py: function in 8 bits, second value in 4, first number in 4, 1 << 16 for two
// operands, 1 << 17 where the second value is the first operand. 0 leaves the value as it is.

const uint FROM_NUMBER = 3u;
const uint FROM_SELF = 4u;

uint source_of(uint code) { return (code >> 16) == 0u ? FROM_SELF : (code >> 8) & 15u; }

// Precise, as each step rounds where it stands alone: compilers otherwise make x of (x + c) - c, and 0 of inf - inf.
float operate(uint id, float p, float q) {
    precise float made = p < 0.0 ? p * q : p;
    switch (id) {
    case 0: made = p + q; break;
    case 1: made = p - q; break;
    case 2: made = p * q; break;
    case 3: made = p / q; break;
    case 5: made = smaller(p, q); break;
    case 6: made = larger(p, q); break;
    }
    return made;
}

float second(uint code, float value, vec3 loaded, uint first) {
    uint source = source_of(code);
    return source == FROM_NUMBER ? number[min(first, 11u)] : source == FROM_SELF ? value : loaded[source];
}

float stepped(uint code, float value, vec3 loaded) {
    uint first = (code >> 12) & 15u;
    if ((code >> 16) == 0u) return activate(code & 255u, value, number[min(first, 11u)], number[min(first + 1u, 11u)]);
    float other = second(code, value, loaded, first);
    bool is_reversed = (code >> 17) != 0u;
    return operate(code & 255u, is_reversed ? other : value, is_reversed ? value : other);
}

bool reads(uint operand) {
    bool found = source_of(STEP_0) == operand || source_of(STEP_1) == operand;
#if STEPS > 2
    found = found || source_of(STEP_2) == operand || source_of(STEP_3) == operand;
#endif
#if STEPS > 4
    found = found || source_of(STEP_4) == operand || source_of(STEP_5) == operand;
    found = found || source_of(STEP_6) == operand || source_of(STEP_7) == operand;
#endif
    return found;
}

// Elements at i, or one that repeats: the first component of four where rows are not vec4.
#define LOAD_AT(b, b4, at, stride) \
    (!VEC4 ? vec4(LOAD(b, at), 0.0, 0.0, 0.0) : stride != 0 ? LOAD4(b4, at) : vec4(LOAD(b, at)))

float chained(float a, float b, float c) {
    vec3 loaded = vec3(a, b, c);
    float value = a;
    value = stepped(STEP_0, value, loaded);
    value = stepped(STEP_1, value, loaded);
#if STEPS > 2
    value = stepped(STEP_2, value, loaded);
    value = stepped(STEP_3, value, loaded);
#endif
#if STEPS > 4
    value = stepped(STEP_4, value, loaded);
    value = stepped(STEP_5, value, loaded);
    value = stepped(STEP_6, value, loaded);
    value = stepped(STEP_7, value, loaded);
#endif
    return value;
}

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint row = walk_row(index, chunk);
    int lane = int(index - row * chunk);
    uint to = row * n[RANK - 1];
    ivec3 from = ivec3(0);
    for (uint d = RANK - 1; d > 0; d--) {
        uint q = d > 1 ? row / n[d - 1] : 0u;
        int i = int(row - q * n[d - 1]);
        from += i * ivec3(x0_stride[d - 1], x1_stride[d - 1], x2_stride[d - 1]);
        row = q;
    }
    int inner = int(n[RANK - 1]);
    ivec3 stride = ivec3(x0_stride[RANK - 1], x1_stride[RANK - 1], x2_stride[RANK - 1]);
    for (uint k = 0; k < ITEMS; k++) {
        int i = lane + int(k * chunk);
        if (i >= inner) break;
        ivec3 at = from + i * stride;
        vec4 a = LOAD_AT(x0, x0_vec4, at.x, stride.x);
        vec4 b = reads(1u) ? LOAD_AT(x1, x1_vec4, at.y, stride.y) : vec4(0.0);
        vec4 c = reads(2u) ? LOAD_AT(x2, x2_vec4, at.z, stride.z) : vec4(0.0);
        vec4 made = vec4(0.0);
        for (int e = 0; e < (VEC4 ? 4 : 1); e++) made[e] = chained(a[e], b[e], c[e]);
        if (VEC4) STORE4(y_vec4, to + i, made);
        else STORE(y, to + i, made.x);
    }
}
