#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "walk.glsl"
#include "pow.glsl"

layout(constant_id = 5) const uint FUNCTION = 0;

layout(set = 0, binding = 0) readonly restrict buffer A { ELEM a[]; };
layout(set = 0, binding = 1) readonly restrict buffer B { ELEM b[]; };
layout(set = 0, binding = 2) writeonly restrict buffer Y { ELEM y[]; };

layout(push_constant) uniform Push {
    uint invocations;
    uint chunk;
    uint n[8];
    int a_stride[8];
    int b_stride[8];
};

#ifdef DTYPE_i32

int apply(int p, int q) {
    switch (FUNCTION) {
    case 0: return p + q;
    case 1: return p - q;
    case 2: return p * q;
    case 5: return p < q ? p : q;
    case 6: return p > q ? p : q;
    }
    // Division and remainders on magnitudes: GLSL leaves negative operands of % open.
    if (q == 0) return 0;
    uint up = uint(abs(p));
    uint uq = uint(abs(q));
    if (FUNCTION == 3) return (p < 0) == (q < 0) ? int(up / uq) : -int(up / uq);
    int rest = p < 0 ? -int(up % uq) : int(up % uq);
    if (FUNCTION == 8 && rest != 0 && (rest < 0) != (q < 0)) rest += q;
    return rest;
}

#else

// Remainder with the sign of p, exact: every subtraction of a power-of-two multiple of q that is at least half of
// what is left rounds to nothing. At most one step per bit of difference between the exponents.
float fmod_f32(float p, float q) {
    if (isnan(p) || isnan(q) || isinf(p) || q == 0.0) return uintBitsToFloat(0x7FC00000u);
    if (isinf(q)) return p;
    float rest = abs(p);
    float unit = abs(q);
    int unit_exponent;
    frexp(unit, unit_exponent);
    for (int step = 0; step < 280 && rest >= unit; step++) {
        int exponent;
        frexp(rest, exponent);
        precise float part = scale_exp2(unit, exponent - unit_exponent);
        if (part > rest) part = part * 0.5;
        precise float left = rest - part;
        rest = left;
    }
    return p < 0.0 ? -rest : rest;
}

float apply(float p, float q) {
    switch (FUNCTION) {
    case 0: return p + q;
    case 1: return p - q;
    case 2: return p * q;
    case 3: return p / q;
    case 4: return pow_f32(p, q);
    case 5: return isnan(p) ? p : isnan(q) ? q : p < q ? p : q;
    case 6: return isnan(p) ? p : isnan(q) ? q : p > q ? p : q;
    case 7: return fmod_f32(p, q);
    case 9: return p < 0.0 ? p * q : p;
    }
    float rest = fmod_f32(p, q);
    return rest != 0.0 && (rest < 0.0) != (q < 0.0) ? rest + q : rest;
}

#endif

void main() {
    uint index = flat_index();
    if (index >= invocations) return;
    uint row = walk_row(index, chunk);
    int lane = int(index - row * chunk);
    uint to = row * n[RANK - 1];
    int from_a = 0;
    int from_b = 0;
    for (uint d = RANK - 1; d > 0; d--) {
        uint q = d > 1 ? row / n[d - 1] : 0u;
        int i = int(row - q * n[d - 1]);
        from_a += i * a_stride[d - 1];
        from_b += i * b_stride[d - 1];
        row = q;
    }
    int inner = int(n[RANK - 1]);
    for (uint k = 0; k < ITEMS; k++) {
        int i = lane + int(k * chunk);
        if (i < inner) y[to + i] = apply(a[from_a + i * a_stride[RANK - 1]], b[from_b + i * b_stride[RANK - 1]]);
    }
}
