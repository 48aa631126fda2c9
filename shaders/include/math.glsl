// Elementary functions in f32 that hold a few units in the last place on every device. Vulkan lets the built-ins
// be worse: sin and cos 2^-11 absolute, exp 3 + 2|x| ulp; lavapipe's exp and log are short polynomials.
// Coefficients are Chebyshev interpolants of the quoted function on the quoted interval.

// ``size``, which is not negative, with the sign of x, -0 included.
float with_sign_of(float size, float x) {
    return uintBitsToFloat(floatBitsToUint(size) | (floatBitsToUint(x) & 0x80000000u));
}

// 2^k for any k, in two factors so that subnormal and overflowing results come out right.
float scale_exp2(float x, int k) {
    int half_k = k / 2;
    return x * intBitsToFloat((half_k + 127) << 23) * intBitsToFloat((k - half_k + 127) << 23);
}

// (e^r - 1) - r over r^2 for |r| <= log(2)/2, error 1e-8 of e^r.
float exp_tail(float r) {
    return 0.5 + r * (0.16666578 + r * (0.041666556 + r * (0.0083631733 + r * 0.0013926176)));
}

// Declares k and r with x = k log(2) + r, log(2) in two parts of which the first has 12 bits (exact product), and p with
// e^x = p 2^k. A macro: NVIDIA's compiler does not inline a function of this with three call sites, whatever its SPIR-V
// asks for, and spills the accumulators of a tile around the call, also in variants that never make it (H200, 1x1
// convolution in f16: 116 us for 27).
#define SCALED_EXP(x, k, r, p)                                                                 \
    float k = roundEven((x) * 1.44269504);                                                     \
    precise float r = ((x) - k * 0.693115234375) - k * 3.194618329871446e-05;                  \
    float p = 1.0 + (r + r * r * exp_tail(r))

// Clamped where the result overflows to infinity, and underflows to 0. No branches here, nor in activations that networks
// use: in an epilogue a branch keeps the compiler from hoisting the loads of the next result.
float exp_f32(float x) {
    float most = x > 89.0 ? 89.0 : x;
    float clamped = most < -104.0 ? -104.0 : most;
    SCALED_EXP(clamped, k, r, p);
    float y = scale_exp2(p, int(k));
    return isnan(x) ? x : y;
}

// x / (1 + e^-x), for x < 0 as x e^x / (1 + e^x), scaled last, so that a subnormal e^x loses nothing. -inf gives NaN, as
// -inf times 0 does.
float silu_f32(float x) {
    float size = abs(x);
    float clamped = size > 125.0 ? -125.0 : -size;
    SCALED_EXP(clamped, k, r, p);
    float e = scale_exp2(p, int(k));
    float above = x / (1.0 + e);
    float below = scale_exp2(above * p, int(k));
    float end = isinf(x) ? uintBitsToFloat(0x7FC00000u) : -0.0;
    below = size > 125.0 ? end : below;
    float y = x < 0.0 ? below : above;
    return isnan(x) ? x : y;
}

// ``factor`` e^x for x < 0, rounded once, also where e^x is subnormal.
float exp_times(float x, float factor) {
    if (x < -125.0) return isinf(factor) ? uintBitsToFloat(0x7FC00000u) : with_sign_of(0.0, factor);
    SCALED_EXP(x, k, r, p);
    return scale_exp2(factor * p, int(k));
}

// What is precise makes so, in glslang, all that it is made of in the same function: an output of a call ends that.
void take(float x, out float y) { y = x; }

// Declares y, the same as exp_f32 of x for x <= 0, in fewer operations; results below the smallest normal number are 0.
// Adding 1.5 2^23 rounds to an integer, which then stands in the low bits. A macro for the same reason as SCALED_EXP;
// sums of products that x is made of stay fused.
#define EXP_BELOW(x, y)                                                                        \
    float y;                                                                                   \
    {                                                                                          \
        float below;                                                                           \
        take(x, below);                                                                        \
        precise float shifted = fma(below, 1.44269504, 12582912.0);                            \
        precise float times = shifted - 12582912.0;                                            \
        precise float rest = fma(-times, 0.693115234375, below);                               \
        rest = fma(-times, 3.194618329871446e-05, rest);                                       \
        float power = intBitsToFloat((floatBitsToInt(shifted) << 23) + 0x3F800000);            \
        float made = (1.0 + (rest + rest * rest * exp_tail(rest))) * power;                    \
        y = below < -87.3365 ? 0.0 : made;                                                     \
    }

float exp_below(float x) {
    EXP_BELOW(x, y)
    return y;
}

// e^x - 1 without cancellation near 0.
float expm1_f32(float x) {
    float near = x + x * x * exp_tail(x);
    float far = exp_f32(x) - 1.0;
    return abs(x) < 0.34657359 ? near : far;
}

// x = 2^e m with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh(s), s = (m-1)/(m+1), as its series up to s^9.
float log_f32(float x) {
    if (isnan(x) || x < 0.0) return uintBitsToFloat(0x7FC00000u);
    if (isinf(x)) return x;
    if (x == 0.0) return uintBitsToFloat(0xFF800000u);
    float shift = 0.0;
    if (x < 1.17549435e-38) {
        x *= 8388608.0;
        shift = -23.0;
    }
    int bits = floatBitsToInt(x) - 0x3F3504F3;
    float e = float(bits >> 23) + shift;
    float f = intBitsToFloat((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0;
    float s = f / (2.0 + f);
    float q = s * s;
    float series = q * (0.66666667 + q * (0.4 + q * (0.28571429 + q * 0.22222222)));
    precise float low = e * 3.194618329871446e-05 + (f - s * (f - series));
    return e * 0.693115234375 + low;
}

// log(1 + x) for x >= 0: the rounding of 1 + x is divided out again (Goldberg 1991, theorem 4).
float log1p_f32(float x) {
    precise float u = 1.0 + x;
    precise float rounded = u - 1.0;
    return rounded == 0.0 || isinf(x) ? x : log_f32(u) * (x / rounded);
}

float tanh_f32(float x) {
    float size = abs(x);
    float a = size > 10.0 ? 10.0 : size;  // where it is 1
    float e = expm1_f32(2.0 * a);
    float y = with_sign_of(e / (e + 2.0), x);
    return isnan(x) ? x : y;
}

// |x| < 1: x P(x^2), P interpolating erf(x)/x; else 1 - exp(-x^2) Q(1/(1 + |x|/2)), Q interpolating
// erfc(x) exp(x^2) on [1, 4]. Error below 1e-7 absolute, and relative below 1.
float erf_f32(float x) {
    float a = abs(x);
    float q = x * x;
    float near = x * (1.12837911 + q * (-0.37612626 + q * (0.11283594 + q * (-0.026854211
               + q * (0.0051890872 + q * (-0.00080168643 + q * 0.000078758749))))));
    float t = 1.0 / (1.0 + 0.5 * a);
    float tail = exp_f32(-q) * (0.0013318623 + t * (0.26443237 + t * (0.37871143
               + t * (-0.030179187 + t * (0.6044721 + t * -0.21879573)))));
    float far = with_sign_of(1.0 - tail, x);
    float y = a < 1.0 ? near : far;
    return isnan(x) ? x : y;
}

// 1/(2 pi) by its bits, behind a word of zeros.
const uint TURN[8] = uint[](0u, 0x28BE60DBu, 0x9391054Au, 0x7F09D5F4u, 0x7D4D3770u, 0x36D8A566u, 0x4F10E410u, 0x7F9458EAu);

// Word ``word`` of TURN shifted left by ``shift`` bits, 0 to 31.
uint turn_word(int word, int shift) {
    return shift == 0 ? TURN[word] : TURN[word] << shift | TURN[min(word + 1, 7)] >> (32 - shift);
}

// x in turns less the nearest quarter, which is ``quarter`` modulo 4, in radians, for finite |x| from 2^12 on. A float is an
// integer of 24 bits times a power of two: of 1/(2 pi), bits that make whole turns of the one are left out, and 96 from
// there on are enough for any (Payne and Hanek 1983).
float far_from_quarter(float x, out int quarter) {
    uint bits = floatBitsToUint(x);
    uint mantissa = (bits & 0x7FFFFFu) | 0x800000u;
    int first = int(bits >> 23 & 255u) - 118;
    int word = first >> 5, shift = first & 31;
    uint high, low, lowest, ignored, carry;
    umulExtended(mantissa, turn_word(word + 2, shift), lowest, ignored);
    umulExtended(mantissa, turn_word(word + 1, shift), high, low);
    low = uaddCarry(low, lowest, carry);
    high += mantissa * turn_word(word, shift) + carry;
    uint nearest = high + 0x20000000u >> 30;
    high -= nearest << 30;
    bool below = int(high) < 0;
    if (below) {
        low = ~low + 1u;
        high = ~high + uint(low == 0u);
    }
    // Exact but for the last of the low word; 2 pi in two parts.
    precise float turns = float(high >> 8) * 5.9604644775390625e-08;
    precise float rest = float(high & 255u) * 2.3283064365386963e-10 + float(low) * 5.421010862427522e-20;
    precise float r = (turns + rest) * 6.28318548 - (turns + rest) * 1.7484556e-07;
    bool negative = below != x < 0.0;
    quarter = x < 0.0 ? -int(nearest) : int(nearest);
    return negative ? -r : r;
}

// sin(x + quarter pi/2): below 4096 pi/2 in four parts (three of 12 bits, the rest) keeps the reduction exact. NaN for
// what is not finite.
float sin_quarter(float x, int quarter) {
    if (isnan(x) || isinf(x)) return uintBitsToFloat(0x7FC00000u);
    int n;
    precise float r;
    if (abs(x) < 4096.0) {
        float k = roundEven(x * 0.63661977);
        r = (((x - k * 1.5703125) - k * 0.0004837512969970703) - k * 7.549533620476723e-08) - k * 2.5633440682570896e-12;
        n = int(k);
    } else {
        r = far_from_quarter(x, n);
    }
    n += quarter;
    float q = r * r;
    float s = r + r * q * (-0.16666667 + q * (0.0083333333 + q * (-0.00019841270 + q * 0.0000027557319)));
    float c = 1.0 + q * (-0.5 + q * (0.041666667 + q * (-0.0013888889 + q * (0.000024801587 - q * 2.7557319e-07))));
    float value = (n & 1) == 0 ? s : c;
    return (n & 2) == 0 ? value : -value;
}

float sin_f32(float x) { return x == 0.0 ? x : sin_quarter(x, 0); }  // -0 stays
float cos_f32(float x) { return sin_quarter(x, 1); }

// Sine over cosine of the same reduction as `sin_quarter`.
float tan_f32(float x) { return sin_f32(x) / sin_quarter(x, 1); }

// For a > 88, where e^a is infinite before its half is: the square of e^(a/2), in an order that stays finite.
float half_exp(float a) {
    if (a <= 88.0) return 0.5 * exp_f32(a);
    float root = exp_f32(0.5 * a);
    return (0.5 * root) * root;
}

float sinh_f32(float x) {
    float a = abs(x);
    float t = expm1_f32(a);
    return isnan(x) ? x : with_sign_of(a > 20.0 ? half_exp(a) : 0.5 * (t + t / (t + 1.0)), x);
}

float cosh_f32(float x) {
    float half_e = half_exp(abs(x));
    return half_e + 0.25 / half_e;
}

// log(a + sqrt(a^2 + 1)) as log(1 + (a + a^2 / (1 + sqrt(a^2 + 1)))); beyond 4096 the 1 is below the last bit.
float asinh_f32(float x) {
    float a = abs(x);
    float y = a > 4096.0 ? log_f32(a) + 0.69314718 : log1p_f32(a + a * a / (1.0 + sqrt(a * a + 1.0)));
    return isnan(x) ? x : with_sign_of(y, x);
}

float acosh_f32(float x) {
    if (x < 1.0) return uintBitsToFloat(0x7FC00000u);
    float t = x - 1.0;
    return x > 4096.0 ? log_f32(x) + 0.69314718 : log1p_f32(t + sqrt(2.0 * t + t * t));
}

float atanh_f32(float x) {
    float a = abs(x);
    if (a > 1.0) return uintBitsToFloat(0x7FC00000u);
    float y = a == 1.0 ? uintBitsToFloat(0x7F800000u) : 0.5 * log1p_f32(2.0 * a / (1.0 - a));
    return isnan(x) ? x : with_sign_of(y, x);
}

// Beyond tan(pi/8) and tan(3 pi/8) around pi/4 and pi/2; in between x + x^3 P(x^2), error 1e-8 of the result.
float atan_f32(float x) {
    float a = abs(x);
    float around = a > 2.41421356 ? 1.57079633 : a > 0.414213562 ? 0.785398163 : 0.0;
    float t = a > 2.41421356 ? -1.0 / a : a > 0.414213562 ? (a - 1.0) / (a + 1.0) : a;
    float q = t * t;
    float y = around + (t + t * q * (-0.333333318 + q * (0.199995405 + q * (-0.142639556
            + q * (0.107437315 + q * -0.0645192819)))));
    return isnan(x) ? x : with_sign_of(y, x);
}

// asin(t) for 0 <= t <= 1/2, q = t^2: t + t^3 P(t^2), error 1e-8 of the result.
float asin_tail(float t, float q) {
    return t + t * q * (0.166666663 + q * (0.0750009454 + q * (0.0445994015
         + q * (0.0311006627 + q * (0.0171492384 + q * 0.0336908472)))));
}

// Beyond 1/2 by the half angle: asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)).
float asin_f32(float x) {
    float a = abs(x);
    if (a > 1.0) return uintBitsToFloat(0x7FC00000u);
    float q = 0.5 * (1.0 - a);
    float y = a > 0.5 ? 1.57079633 - 2.0 * asin_tail(sqrt(q), q) : asin_tail(a, a * a);
    return isnan(x) ? x : with_sign_of(y, x);
}

float acos_f32(float x) {
    float a = abs(x);
    if (a > 1.0) return uintBitsToFloat(0x7FC00000u);
    if (a <= 0.5) return 1.57079633 - (x < 0.0 ? -1.0 : 1.0) * asin_tail(a, a * a);
    float q = 0.5 * (1.0 - a);
    float y = 2.0 * asin_tail(sqrt(q), q);
    return x < 0.0 ? 3.14159265 - y : y;
}
