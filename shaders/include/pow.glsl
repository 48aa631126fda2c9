// pow with numpy's special values and a few ulp anywhere: log2 in two floats, since an error of the logarithm is
// multiplied by up to 128 in the result. Built-in pow is undefined for negative bases.
#include "math.glsl"

// a * b exactly as hi + lo (Dekker 1971): halves of 12 bits have exact products. fma would do, but Vulkan does not
// promise that it rounds once.
vec2 two_product(float a, float b) {
    float ah = uintBitsToFloat(floatBitsToUint(a) & 0xFFFFF000u);
    float bh = uintBitsToFloat(floatBitsToUint(b) & 0xFFFFF000u);
    precise float al = a - ah;
    precise float bl = b - bh;
    precise float p = a * b;
    precise float low = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
    return vec2(p, low);
}

// log2(x) for finite x > 0 as hi + lo: x = 2^e m, log m = 2 artanh(s) with s = (m-1)/(m+1) in two floats.
vec2 log2_two(float x) {
    float e = 0.0;
    if (x < 1.17549435e-38) {
        x *= 16777216.0;
        e = -24.0;
    }
    int bits = floatBitsToInt(x) - 0x3F3504F3;
    e += float(bits >> 23);
    precise float f = intBitsToFloat((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0;
    precise float t = 2.0 + f;
    precise float t_low = f - (t - 2.0);
    precise float s = f / t;
    vec2 back = two_product(s, t);
    precise float s_low = (((f - back.x) - back.y) - s * t_low) / t;
    float q = s * s;
    float series = 2.0 * s * q * (0.33333333 + q * (0.2 + q * (0.14285714 + q * (0.11111111 + q * 0.090909091))));
    vec2 product = two_product(2.0 * s, 1.44269502);
    precise float low = product.y + 2.0 * s * 1.92596303e-08 + 1.44269502 * (2.0 * s_low + series);
    precise float hi = e + product.x;
    precise float part = hi - e;
    precise float rest = ((e - (hi - part)) + (product.x - part)) + low;
    precise float sum = hi + rest;  // what is left is less than its last place: times y it must not move k
    precise float left = rest - (sum - hi);
    return vec2(sum, left);
}

float pow_positive(float x, float y) {
    vec2 log2_x = log2_two(x);
    vec2 p = two_product(y, log2_x.x);
    if (p.x > 130.0) return uintBitsToFloat(0x7F800000u);
    if (p.x < -152.0) return 0.0;
    float k = roundEven(p.x);
    precise float r = ((p.x - k) + (p.y + y * log2_x.y)) * 0.69314718;
    return scale_exp2(1.0 + (r + r * r * exp_tail(r)), int(k));
}

float pow_f32(float x, float y) {
    if (y == 0.0 || x == 1.0) return 1.0;
    if (isnan(x) || isnan(y)) return x + y;
    float a = abs(x);
    // Exact for small integers, and what models ask for.
    if (y == 1.0) return x;
    if (y == 2.0) return x * x;
    if (y == 3.0) return x * x * x;
    if (y == 4.0) return (x * x) * (x * x);
    if (y == 5.0) return (x * x) * (x * x) * x;
    if (y == 6.0) return (x * x * x) * (x * x * x);
    if (y == -1.0) return 1.0 / x;
    bool whole = abs(y) >= 8388608.0 || floor(y) == y;
    bool odd = whole && abs(y) < 16777216.0 && (int(abs(y)) & 1) == 1;
    float infinity = uintBitsToFloat(0x7F800000u);
    float value;
    if (isinf(y)) value = a == 1.0 ? 1.0 : (a > 1.0) == (y > 0.0) ? infinity : 0.0;
    else if (a == 0.0 || isinf(a)) value = (a == 0.0) == (y > 0.0) ? 0.0 : infinity;
    else if (x < 0.0 && !whole) return uintBitsToFloat(0x7FC00000u);
    else value = y == 0.5 ? sqrt(a) : pow_positive(a, y);
    return odd && (floatBitsToUint(x) >> 31) == 1u ? -value : value;
}
