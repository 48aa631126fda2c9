// 8-bit integers as bytes of words, and floats that become them. All kinds are computed as signed bytes: of unsigned
// ones the top bit is flipped, which takes 128 off both a value and its zero point, and leaves the difference as it is.

#extension GL_EXT_control_flow_attributes : require

#include "bits.glsl"

const uint NAN_BITS = 0x7FC00000u, INFINITE_BITS = 0x7F800000u;

// What to flip in every byte of a word.
uint flips(bool is_signed) {
    return is_signed ? 0u : 0x80808080u;
}

int signed_byte(uint word, uint index) {
    return bitfieldExtract(int(word), int(8u * (index & 3u)), 8);
}

// a / b, correctly rounded, which GLSL does not ask of a division: by long division of the significands.
float divide_exactly(float a, float b) {
    uint x = floatBitsToUint(a), y = floatBitsToUint(b);
    uint sign = (x ^ y) & 0x80000000u;
    x &= 0x7FFFFFFFu;
    y &= 0x7FFFFFFFu;
    if (max(x, y) > INFINITE_BITS || (x == y && (x == 0u || x == INFINITE_BITS))) return uintBitsToFloat(NAN_BITS);
    if (x == INFINITE_BITS || y == 0u) return uintBitsToFloat(sign | INFINITE_BITS);
    if (y == INFINITE_BITS || x == 0u) return uintBitsToFloat(sign);
    ivec2 exponent = ivec2(x >> 23, y >> 23);
    uvec2 rest = uvec2(x, y) & 0x7FFFFFu;
    bvec2 normal = notEqual(exponent, ivec2(0));
    ivec2 shift = 23 - findMSB(rest);
    rest = mix(rest << shift, rest | 0x800000u, normal);
    exponent = mix(1 - shift, exponent, normal);
    int e = exponent.x - exponent.y + 127;
    if (rest.x < rest.y) {
        rest.x <<= 1;
        e--;
    }
    uint q = 0u;  // 24 bits and one to round by
    // A CPU driver runs what no lane takes, but for loops.
    [[dont_unroll]] for (int i = 0; i < 25; i++) {
        q <<= 1;
        if (rest.x >= rest.y) {
            rest.x -= rest.y;
            q |= 1u;
        }
        rest.x <<= 1;
    }
    uint lost = uint(rest.x != 0u);
    if (e <= 0) {  // subnormal
        int right = min(1 - e, 26);
        lost |= uint((q & ((1u << right) - 1u)) != 0u);
        q >>= right;
        e = 1;
    }
    q = (q >> 1) + (q & 1u & (lost | (q >> 1)));
    uint bits = (uint(e - 1) << 23) + q;
    return uintBitsToFloat(sign | (e >= 255 ? INFINITE_BITS : min(bits, INFINITE_BITS)));
}

// Whether a quotient by a divisor, a few units in its last place off, surely rounds to the whole number that the exact
// one rounds to, or is out of the range of bytes. GLSL asks no accuracy for the least and largest divisors.
bool rounds_surely(float q, float divisor) {
    uint exponent = (floatBitsToUint(divisor) >> 23) & 0xFFu;
    float size = abs(q);
    return exponent >= 2u && exponent <= 251u && (size > 1000.0 || abs(fract(size) - 0.5) > 0.001);
}

// a / b, and v (a / b), for what becomes a byte.
float divide_to_round(float a, float b) {
    float q = a / b;
    return rounds_surely(q, b) ? q : divide_exactly(a, b);
}

float scale_to_round(float v, float a, float b) {
    float q = v * (a / b);
    return rounds_surely(q, b) ? q : v * divide_exactly(a, b);
}

// The nearest whole number, the even one of two, plus the zero point, within the range of the type; of NaN the zero
// point.
int saturated(float v, int zero, bool is_signed) {
    int whole = isnan(v) ? 0 : int(roundEven(clamp(v, -1000.0, 1000.0))) + zero;
    if (isnan(v)) whole = zero;
    return is_signed ? clamp(whole, -128, 127) : clamp(whole, 0, 255);
}

// A byte as the number that its type says.
int byte_value(uint word, uint index, bool is_signed) {
    return is_signed ? signed_byte(word, index) : int(byte_of(word, index));
}
