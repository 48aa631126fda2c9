// Elements of 16 bits, computed with in f32: f16, bf16, and u16, whose bits are only moved. They are converted here in
// integers, since Vulkan leaves the rounding of its own conversions to the device: to nearest, ties to even, beyond the
// largest to infinity, as numpy does. Where the device has no 16-bit storage (PACKED), buffers are words of two elements,
// and one of them is stored by two atomic operations that leave the other's bits alone, so that two invocations may
// write the two of a word.
#ifdef PACKED
#define WRITEONLY
#define ELEM uint
#define BITS_AT(x, i) ((x[uint(i) >> 1] >> ((uint(i) & 1u) * 16u)) & 0xFFFFu)
#define KEPT_BITS(i) (0xFFFF0000u >> ((uint(i) & 1u) * 16u))
#define STORE_BITS(y, i, bits)                      \
    (atomicAnd(y[uint(i) >> 1], KEPT_BITS(i)),      \
     atomicOr(y[uint(i) >> 1], (bits) << ((uint(i) & 1u) * 16u)))
#else
#extension GL_EXT_shader_16bit_storage : require
#define WRITEONLY writeonly
#define ELEM uint16_t
#define BITS_AT(x, i) uint(x[i])
#define STORE_BITS(y, i, bits) y[i] = uint16_t(bits)
#endif
#define ELEM2 uint
#define ELEM4 uvec2

#if defined(DTYPE_u16)
#define VALUE uint
#define LOAD(x, i) BITS_AT(x, i)
#define LOAD4(x, i) x[i]
#define STORE(y, i, value) STORE_BITS(y, i, value)
#define STORE4(y, i, value) y[i] = value
#else
#define VALUE_IS_FLOAT
#define VALUE float
#define VALUE4 vec4

#ifdef DTYPE_f16
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

#define LOAD(x, i) from_bits2(BITS_AT(x, i)).x
#define LOAD2(x, i) from_bits2(x[i])
#define LOAD4(x, i) from_bits4(x[i])
#define STORE(y, i, value) STORE_BITS(y, i, to_bits(value))
#define STORE2(y, i, value) y[i] = to_bits2(value)
#define STORE4(y, i, value) y[i] = to_bits4(value)
#endif
