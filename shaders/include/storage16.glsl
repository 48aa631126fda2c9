// Elements of 16 bits, computed with in f32: f16, bf16, and u16, whose bits are only moved. They are converted here in
// integers, since Vulkan leaves the rounding of its own conversions to the device: to nearest, ties to even, beyond the
// largest to infinity, as numpy does. Where the device has no 16-bit storage (PACKED), buffers are words of two elements,
// and one of them is stored by two atomic operations that leave the other's bits alone, so that two invocations may
// write the two of a word.
#ifdef PACKED
#define WRITEONLY
#define ELEM uint
#define BITS_AT(b, i) ((b[uint(i) >> 1] >> ((uint(i) & 1u) * 16u)) & 0xFFFFu)
#define KEPT_BITS(i) (0xFFFF0000u >> ((uint(i) & 1u) * 16u))
#define STORE_BITS(b, i, bits)                      \
    (atomicAnd(b[uint(i) >> 1], KEPT_BITS(i)),      \
     atomicOr(b[uint(i) >> 1], (bits) << ((uint(i) & 1u) * 16u)))
#else
#extension GL_EXT_shader_16bit_storage : require
#define WRITEONLY writeonly
#define ELEM uint16_t
#define BITS_AT(b, i) uint(b[i])
#define STORE_BITS(b, i, bits) b[i] = uint16_t(bits)
#endif
#define ELEM2 uint
#define ELEM4 uvec2

#if defined(DTYPE_u16)
#define VALUE uint
#define FROM_WORD(word) (word)
#define LOAD(b, i) BITS_AT(b, i)
#define LOAD4(b, i) b[i]
#define STORE(b, i, value) STORE_BITS(b, i, value)
#define STORE4(b, i, value) b[i] = value
#else
#define VALUE_IS_FLOAT
#define VALUE float
#define FROM_WORD(word) uintBitsToFloat(word)
#define VALUE4 vec4

#ifdef DTYPE_f16
float from_bits(uint bits) { return unpackHalf2x16(bits).x; }
vec2 from_bits2(uint bits) { return unpackHalf2x16(bits); }

uint to_bits(float v) {
    uint bits = floatBitsToUint(v);
    uint size = bits & 0x7FFFFFFFu;
    // Normal: half of what is cut off is added, less one where the last bit that stays is 0; the exponent has a bias of
    // 15 in place of 127. Below 2^-14: adding 1/2 rounds to the multiples of 2^-24 that subnormal numbers are.
    uint made = (size + 0xFFFu + ((size >> 13) & 1u) - 0x38000000u) >> 13;
    if (size < 0x38800000u) made = floatBitsToUint(uintBitsToFloat(size) + 0.5) - 0x3F000000u;
    if (size >= 0x477FF000u) made = 0x7C00u;
    if (size > 0x7F800000u) made = 0x7E00u | ((size >> 13) & 0x3FFu);
    return made | ((bits >> 16) & 0x8000u);
}
#else
float from_bits(uint bits) { return uintBitsToFloat(bits << 16); }
vec2 from_bits2(uint bits) { return vec2(uintBitsToFloat(bits << 16), uintBitsToFloat(bits & 0xFFFF0000u)); }

uint to_bits(float v) {
    uint bits = floatBitsToUint(v);
    uint made = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : made;
}
#endif

uint to_bits2(vec2 v) { return to_bits(v.x) | (to_bits(v.y) << 16); }
vec4 from_bits4(uvec2 bits) { return vec4(from_bits2(bits.x), from_bits2(bits.y)); }
uvec2 to_bits4(vec4 v) { return uvec2(to_bits2(v.xy), to_bits2(v.zw)); }

#define LOAD(b, i) from_bits(BITS_AT(b, i))
#define LOAD2(b, i) from_bits2(b[i])
#define LOAD4(b, i) from_bits4(b[i])
#define STORE(b, i, value) STORE_BITS(b, i, to_bits(value))
#define STORE2(b, i, value) b[i] = to_bits2(value)
#define STORE4(b, i, value) b[i] = to_bits4(value)
#endif
