// f16 and bf16 in the low 16 bits of a word, to f32 and back: rounded to nearest, ties to even, beyond the largest to
// infinity, as numpy does. Vulkan leaves the rounding of its own conversions to the device: shaders of f16 are told
// (PACKS_HALVES) where they are known to round as that does, but for which NaN one becomes.

float f16_value(uint bits) { return unpackHalf2x16(bits).x; }
float bf16_value(uint bits) { return uintBitsToFloat(bits << 16); }

// By selections alone: branches cost more than what they skip, at every element that is stored.
uint f16_bits_by_words(float v) {
    uint bits = floatBitsToUint(v);
    uint size = bits & 0x7FFFFFFFu;
    // Normal: half of what is cut off is added, less one where the last bit that stays is 0; the exponent has a bias of
    // 15 in place of 127. Below 2^-14: adding 1/2 rounds to the multiples of 2^-24 that subnormal numbers are.
    uint made = (size + 0xFFFu + ((size >> 13) & 1u) - 0x38000000u) >> 13;
    uint subnormal = floatBitsToUint(uintBitsToFloat(size) + 0.5) - 0x3F000000u;
    made = mix(made, subnormal, size < 0x38800000u);
    made = mix(made, 0x7C00u, size >= 0x477FF000u);
    made = mix(made, 0x7E00u | ((size >> 13) & 0x3FFu), size > 0x7F800000u);
    return made | ((bits >> 16) & 0x8000u);
}

#ifdef DTYPE_f16
uint f16_bits(float v) { return PACKS_HALVES ? packHalf2x16(vec2(v, 0.0)) : f16_bits_by_words(v); }
uint f16_bits2(vec2 v) {
    return PACKS_HALVES ? packHalf2x16(v) : f16_bits_by_words(v.x) | (f16_bits_by_words(v.y) << 16);
}
#else
uint f16_bits(float v) { return f16_bits_by_words(v); }
#endif

uint bf16_bits(float v) {
    uint bits = floatBitsToUint(v);
    uint made = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return mix(made, (bits >> 16) | 0x40u, (bits & 0x7FFFFFFFu) > 0x7F800000u);
}
