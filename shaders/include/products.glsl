// What products are made of and added up in: f32, or with HALF_MATH f16. REAL is one number of an operand, REALS are
// the WIDE (2 or 4) that lanes of f16 multiply at once; in f32 they are one. Sums of f16 go on for a bounded depth
// only: PARTIAL holds them, and FLUSH_F16_SUMS adds them to the f32 in ``acc``. With F16_DEPTH_COUNTED the loop counts
// its iterations (COUNT_F16_DEPTH) and flushes after F16_DEPTH of them: see vkconv/ops/kernels/f16_accumulation.py.
#extension GL_EXT_control_flow_attributes : require
#ifdef HALF_MATH
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define REAL float16_t
#define REAL4 f16vec4
#if WIDE == 2
#define REALS f16vec2
#define SUMS vec2
#else
#define REALS f16vec4
#define SUMS vec4
#endif

f16vec4 f16_values(uvec2 bits) { return f16vec4(unpackFloat2x16(bits.x), unpackFloat2x16(bits.y)); }

#define LOAD_REAL(b, i) unpackFloat2x16(BITS_AT(b, i)).x
#define LOAD_REAL4(b, i) f16_values(b[i])
#define LOAD_REALS(b, i) LOAD_REAL4(b, (i) / 4)
#define TWO(first, second) f16vec2(first, second)
#define ONE_OF(reals, i) (reals)[i]

#define PARTIAL partial
#define BEGIN_F16_SUMS(type, count) \
    type partial[count];            \
    [[unroll]] for (int i = 0; i < count; i++) partial[i] = type(0.0);
#define FLUSH_F16_SUMS(type, to, count)          \
    [[unroll]] for (int i = 0; i < count; i++) { \
        acc[i] += to(partial[i]);                \
        partial[i] = type(0.0);                  \
    }
#ifdef F16_DEPTH_COUNTED
#define BEGIN_F16_DEPTH int f16_depth = 0;
#define COUNT_F16_DEPTH(count)             \
    if (++f16_depth == F16_DEPTH) {        \
        FLUSH_F16_SUMS(REALS, SUMS, count) \
        f16_depth = 0;                     \
    }
#endif
#else
#define WIDE 1
#define REAL float
#define REAL4 vec4
#define REALS float
#define SUMS float
#define LOAD_REAL(b, i) LOAD(b, i)
#define LOAD_REAL4(b, i) LOAD4(b, i)
#define LOAD_REALS(b, i) LOAD(b, i)
#define TWO(first, second) first
#define ONE_OF(reals, i) reals
#define PARTIAL acc
#define BEGIN_F16_SUMS(type, count)
#define FLUSH_F16_SUMS(type, to, count)
#define BEGIN_F16_DEPTH
#define COUNT_F16_DEPTH(count)
#endif
