#version 450
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "bits.glsl"

const uint F32 = 0, I32 = 1, U32 = 2, BOOL = 3;  // KINDS in vkconv/ops/cast.py
layout(constant_id = 3) const uint SOURCE = 0;
layout(constant_id = 4) const uint TARGET = 0;

layout(set = 0, binding = 0) readonly restrict buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly restrict buffer Y { uint y[]; };

layout(push_constant) uniform Push { uint count; };

// GLSL leaves out-of-range conversions open: these saturate, and NaN becomes 0.
int to_int(float v) {
    if (isnan(v)) return 0;
    return v >= 2147483648.0 ? 2147483647 : v <= -2147483648.0 ? -2147483647 - 1 : int(v);
}

uint to_uint(float v) {
    return !(v > 0.0) ? 0u : v >= 4294967296.0 ? 0xFFFFFFFFu : uint(v);
}

uint convert(uint bits) {
    if (SOURCE == TARGET) return bits;
    if (SOURCE == F32) {
        float v = uintBitsToFloat(bits);
        if (TARGET == I32) return uint(to_int(v));
        if (TARGET == U32) return to_uint(v);
        return (bits & 0x7FFFFFFFu) != 0u ? 1u : 0u;
    }
    if (TARGET == F32) return floatBitsToUint(SOURCE == I32 ? float(int(bits)) : float(bits));
    return TARGET == BOOL ? uint(bits != 0u) : bits;
}

// Four elements per invocation: one word where the target is bool.
void main() {
    uint first = flat_index() * 4;
    if (first >= count) return;
    uint packed = 0u;
    for (uint k = 0; k < 4; k++) {
        uint i = first + k;
        if (i >= count) break;
        uint value = convert(SOURCE == BOOL ? byte_of(x[first / 4], k) : x[i]);
        if (TARGET == BOOL) packed |= value << (8u * k);
        else y[i] = value;
    }
    if (TARGET == BOOL) y[first / 4] = packed;
}
