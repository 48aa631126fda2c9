#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "bits.glsl"
#include "int64.glsl"
#include "halves.glsl"

// KINDS in vkconv/ops/pointwise/cast.py
const uint F32 = 0, I32 = 1, U32 = 2, BOOL = 3, I64 = 4, I8 = 5, U8 = 6, F16 = 7, BF16 = 8, I16 = 9, U16 = 10;
const bool FROM_BYTES = SOURCE == BOOL || SOURCE == I8 || SOURCE == U8;
const bool TO_BYTES = TARGET == BOOL || TARGET == I8 || TARGET == U8;
const bool FROM_HALF = SOURCE == F16 || SOURCE == BF16;
const bool TO_HALF = TARGET == F16 || TARGET == BF16;
const bool FROM_SHORT = SOURCE == I16 || SOURCE == U16;
const bool TO_SHORT = TARGET == I16 || TARGET == U16;
const bool FROM_FLOAT = SOURCE == F32 || FROM_HALF;
const bool TO_FLOAT = TARGET == F32 || TO_HALF;
const bool FROM_SIGNED = SOURCE == I32 || SOURCE == I8 || SOURCE == I16;

// GLSL leaves out-of-range conversions open: these saturate, and NaN becomes 0.
int to_int(float v) {
    if (isnan(v)) return 0;
    return v >= 2147483648.0 ? 2147483647 : v <= -2147483648.0 ? -2147483647 - 1 : int(v);
}

uint to_uint(float v) {
    return !(v > 0.0) ? 0u : v >= 4294967296.0 ? 0xFFFFFFFFu : uint(v);
}

// The magnitude in whole words; what a float of 24 bits has below them is gone, or nothing.
uvec2 to_long(float v) {
    if (isnan(v)) return uvec2(0u);
    if (v >= 9223372036854775808.0) return uvec2(0xFFFFFFFFu, 0x7FFFFFFFu);
    if (v < -9223372036854775808.0) return uvec2(0u, 0x80000000u);
    float size = floor(abs(v));
    float high = floor(size / 4294967296.0);
    uvec2 magnitude = uvec2(uint(size - high * 4294967296.0), uint(high));
    return v < 0.0 ? negate64(magnitude) : magnitude;
}

// The leading 32 bits, of which the last one stands for all that follow, round as the whole number does.
float from_long(uvec2 v) {
    uvec2 size = abs64(v);
    int shift = size.y == 0u ? 0 : findMSB(size.y) + 1;
    uint lead = shift == 0 ? size.x : shift == 32 ? size.y : (size.y << uint(32 - shift)) | (size.x >> uint(shift));
    uint lost = shift == 0 ? 0u : shift == 32 ? size.x : size.x << uint(32 - shift);
    float scaled = float(lead | uint(lost != 0u)) * intBitsToFloat((127 + shift) << 23);
    return negative64(v) ? -scaled : scaled;
}

uvec2 convert_to_long(uint bits) {
    if (FROM_FLOAT) return to_long(uintBitsToFloat(bits));
    return uvec2(bits, FROM_SIGNED ? uint(int(bits) >> 31) : 0u);
}

uint convert_from_long(uvec2 v) {
    if (TO_FLOAT) return floatBitsToUint(from_long(v));
    return TARGET == BOOL ? uint(v != uvec2(0u)) : v.x;
}

uint convert(uint bits) {
    if (SOURCE == TARGET || (FROM_FLOAT && TO_FLOAT)) return bits;
    if (FROM_FLOAT) {
        float v = uintBitsToFloat(bits);
        if (TARGET == I32) return uint(to_int(v));
        if (TARGET == U32) return to_uint(v);
        if (TARGET == I8) return uint(clamp(to_int(v), -128, 127));
        if (TARGET == U8) return min(to_uint(v), 255u);
        if (TARGET == I16) return uint(clamp(to_int(v), -32768, 32767));
        if (TARGET == U16) return min(to_uint(v), 65535u);
        return (bits & 0x7FFFFFFFu) != 0u ? 1u : 0u;
    }
    if (TO_FLOAT) return floatBitsToUint(FROM_SIGNED ? float(int(bits)) : float(bits));
    return TARGET == BOOL ? uint(bits != 0u) : bits;
}

uint short_at(uint i) { return (x[i / 2] >> (16u * (i & 1u))) & 0xFFFFu; }

// A float of 16 bits counts as the f32 that it is.
uint half_at(uint i) {
    uint bits = short_at(i);
    return floatBitsToUint(SOURCE == F16 ? f16_value(bits) : bf16_value(bits));
}

uint half_of(uint bits) { return TARGET == F16 ? f16_bits(uintBitsToFloat(bits)) : bf16_bits(uintBitsToFloat(bits)); }

// Four elements per invocation: one word where the target is bytes, two where it has 16 bits.
void main() {
    uint first = flat_index() * 4;
    if (first >= count) return;
    uint packed = 0u;
    uvec2 halves = uvec2(0u);
    for (uint k = 0; k < 4; k++) {
        uint i = first + k;
        if (i >= count) break;
        uint value;
        if (SOURCE == I64) {
            uvec2 whole = uvec2(x[2 * i], x[2 * i + 1]);
            value = TARGET == I64 ? whole.x : convert_from_long(whole);
            if (TARGET == I64) y[2 * i + 1] = whole.y;
        } else {
            uint bits;
            if (FROM_BYTES) bits = byte_of(x[first / 4], k);
            else bits = FROM_HALF ? half_at(i) : FROM_SHORT ? short_at(i) : x[i];
            if (SOURCE == I8) bits = uint(bitfieldExtract(int(bits), 0, 8));
            if (SOURCE == I16) bits = uint(bitfieldExtract(int(bits), 0, 16));
            value = TARGET == I64 ? 0u : convert(bits);
            if (TARGET == I64) {
                uvec2 whole = convert_to_long(bits);
                value = whole.x;
                y[2 * i + 1] = whole.y;
            }
        }
        if (TARGET == I64) y[2 * i] = value;
        else if (TO_HALF) halves[k / 2] |= half_of(value) << (16u * (k & 1u));
        else if (TO_SHORT) halves[k / 2] |= (value & 0xFFFFu) << (16u * (k & 1u));
        else if (TO_BYTES) packed |= (value & 0xFFu) << (8u * k);
        else y[i] = value;
    }
    if (TO_BYTES) y[first / 4] = packed;
    if (TO_HALF || TO_SHORT) {
        y[first / 2] = halves.x;
        if (first + 2 < count) y[first / 2 + 1] = halves.y;
    }
}
