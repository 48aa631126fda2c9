// Squares leave the range of f32 beyond 2^64, and lose bits below 2^-51. A row whose sum of squares tells that they have
// is multiplied by a power of two and added up again; in range such a factor changes no bit of the result.

// No square of a finite number times SHRINK is infinite, and what their sum loses below the range is nothing beside one
// that was beyond it. No square of a subnormal number times GROW is below the range, nor beyond it the sum of 2^32 of
// numbers whose own was too small.
const float SHRINK = 1.2621774e-29;  // 2^-96
const float GROW = 3.0948501e26;     // 2^88

// By what a row with this sum, or mean, of squares is multiplied: 1 where it is right; ``least`` is what it must be.
float power_for(float squares, float least) {
    return isnan(squares) || isinf(squares) ? SHRINK : squares < least ? GROW : 1.0;
}

// 1 / power, exactly, of a power of two that is not 2^127.
float inverse_of(float power) { return uintBitsToFloat(0x7F000000u - floatBitsToUint(power)); }

// The power of two that brings ``size``, which is not negative, to [1, 2), or as near as 2^126 does.
float power_of_size(float size) {
    int exponent = int(floatBitsToUint(size) >> 23 & 255u);
    return intBitsToFloat(clamp(254 - exponent, 1, 253) << 23);
}

// Before anything else is: factors of sums and squares may move.
float times(float v, float power) {
    precise float product = v * power;
    return product;
}
vec4 times(vec4 v, vec4 power) {
    precise vec4 product = v * power;
    return product;
}
