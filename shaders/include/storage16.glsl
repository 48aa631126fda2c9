// Elements of 16 bits, computed with in f32: f16, bf16, and u16, whose bits are only moved. Where the device has no
// 16-bit storage (PACKED), buffers are words of two elements, and one of them is stored by two atomic operations that
// leave the other's bits alone, so that two invocations may write the two of a word.
#ifdef PACKED
#define WRITEONLY
#define ELEM uint
#define BITS_AT(b, i) ((b[uint(i) >> 1] >> ((uint(i) & 1u) * 16u)) & 0xFFFFu)
#define KEPT_BITS(i) (0xFFFF0000u >> ((uint(i) & 1u) * 16u))
uint stored_bits;  // made before the element is cleared: it may be made from what that holds
#define STORE_BITS(b, i, bits)                      \
    (stored_bits = (bits),                          \
     atomicAnd(b[uint(i) >> 1], KEPT_BITS(i)),      \
     atomicOr(b[uint(i) >> 1], stored_bits << ((uint(i) & 1u) * 16u)))
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

#define LOAD(b, i) from_bits(BITS_AT(b, i))
#define LOAD2(b, i) from_bits2(b[i])
#define LOAD4(b, i) from_bits4(b[i])
#define STORE(b, i, value) STORE_BITS(b, i, to_bits(value))
#define STORE2(b, i, value) b[i] = to_bits2(value)
#define STORE4(b, i, value) b[i] = to_bits4(value)
#endif
