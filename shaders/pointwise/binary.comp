#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "walk.glsl"
#include "pow.glsl"
#include "extremes.glsl"
#ifdef DTYPE_i64
#include "int64.glsl"
#endif

#if defined(DTYPE_i64)

uvec2 power(uvec2 base, uvec2 exponent) {
    bool odd = (exponent.x & 1u) == 1u;
    if (base == uvec2(1u, 0u)) return base;
    if (base == uvec2(0xFFFFFFFFu)) return odd ? base : uvec2(1u, 0u);
    if (negative64(exponent)) return uvec2(0u);
    uvec2 result = uvec2(1u, 0u);
    for (int bit = 0; bit < 63 && exponent != uvec2(0u); bit++) {
        if ((exponent.x & 1u) == 1u) result = mul64(result, base);
        base = mul64(base, base);
        exponent = shift_right64(exponent, 1u);
    }
    return result;
}

uvec2 apply(uvec2 p, uvec2 q) {
    bool beyond = q.y != 0u || q.x >= 64u;
    switch (FUNCTION) {
    case 0: return add64(p, q);
    case 1: return sub64(p, q);
    case 2: return mul64(p, q);
    case 4: return power(p, q);
    case 5: return less64(p, q) ? p : q;
    case 6: return less64(p, q) ? q : p;
    case 10: return p & q;
    case 11: return p | q;
    case 12: return p ^ q;
    case 13: return beyond ? uvec2(0u) : shift_left64(p, q.x);
    case 14: return shift_right64(p, beyond ? 63u : q.x);
    }
    if (q == uvec2(0u)) return uvec2(0u);
    uvec2 rest;
    uvec2 quotient = divide64(abs64(p), abs64(q), rest);
    if (FUNCTION == 3) return negative64(p) == negative64(q) ? quotient : negate64(quotient);
    if (negative64(p)) rest = negate64(rest);
    if (FUNCTION == 8 && rest != uvec2(0u) && negative64(rest) != negative64(q)) rest = add64(rest, q);
    return rest;
}

#elif defined(DTYPE_i32)

// By squaring; 0 for what is below 1.
int power(int base, int exponent) {
    if (base == 1) return 1;
    if (base == -1) return (exponent & 1) == 1 ? -1 : 1;
    if (exponent < 0) return 0;
    int result = 1;
    for (int bit = 0; bit < 31 && exponent > 0; bit++) {
        if ((exponent & 1) == 1) result *= base;
        base *= base;
        exponent >>= 1;
    }
    return result;
}

int apply(int p, int q) {
    bool beyond = q < 0 || q >= 32;
    switch (FUNCTION) {
    case 0: return p + q;
    case 1: return p - q;
    case 2: return p * q;
    case 4: return power(p, q);
    case 5: return p < q ? p : q;
    case 6: return p > q ? p : q;
    case 10: return p & q;
    case 11: return p | q;
    case 12: return p ^ q;
    case 13: return beyond ? 0 : p << q;
    case 14: return p >> (beyond ? 31 : q);
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

// Remainder with the sign of p, exact: a float is an integer of 24 bits times a power of two, and a remainder stays one
// when 8 bits of what the exponents differ by are shifted in. By integers, so that subnormal numbers are what they are.
float fmod_f32(float p, float q) {
    const uint INFINITE = 0x7F800000u, HIDDEN = 0x800000u;
    uint sign_bit = floatBitsToUint(p) & 0x80000000u;
    uint dividend = floatBitsToUint(p) ^ sign_bit;
    uint divisor = floatBitsToUint(q) & 0x7FFFFFFFu;
    if (dividend >= INFINITE || divisor > INFINITE || divisor == 0u) return uintBitsToFloat(0x7FC00000u);
    if (dividend < divisor) return p;
    int exponent = max(int(divisor >> 23), 1);
    int more_bits = max(int(dividend >> 23), 1) - exponent;
    uint unit = divisor < HIDDEN ? divisor : (divisor & (HIDDEN - 1u)) | HIDDEN;
    uint rest = (dividend < HIDDEN ? dividend : (dividend & (HIDDEN - 1u)) | HIDDEN) % unit;
    for (int step = 0; step < 32 && more_bits > 0; step++) {
        int shift = min(more_bits, 8);
        rest = (rest << shift) % unit;
        more_bits -= shift;
    }
    // At most to the hidden bit's place, or the smallest exponent.
    int shift = min(23 - findMSB(rest), exponent - 1);
    rest <<= shift;
    if (rest >= HIDDEN) rest += uint(exponent - shift - 1) << 23;
    return uintBitsToFloat(rest | sign_bit);
}

// numpy's: what is no zero has the sign of q.
float mod_f32(float p, float q) {
    float rest = fmod_f32(p, q);
    uint sign_bit = floatBitsToUint(q) & 0x80000000u;
    if ((floatBitsToUint(rest) << 1) == 0u) return uintBitsToFloat(sign_bit);
    return (floatBitsToUint(rest) & 0x80000000u) == sign_bit ? rest : rest + q;
}

float apply(float p, float q) {
    switch (FUNCTION) {
    case 0: return p + q;
    case 1: return p - q;
    case 2: return p * q;
    case 3: return p / q;
    case 4: return pow_f32(p, q);
    case 5: return smaller(p, q);
    case 6: return larger(p, q);
    case 7: return fmod_f32(p, q);
    case 9: return p < 0.0 ? p * q : p;
    }
    return mod_f32(p, q);
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
        if (i >= inner) break;
        VALUE p = LOAD(a, from_a + i * a_stride[RANK - 1]);
        VALUE q = LOAD(b, from_b + i * b_stride[RANK - 1]);
        STORE(y, to + i, apply(p, q));
    }
}
