// Included first by every shader, after its #version: element types, the kernel's interface, flat index.
#extension GL_GOOGLE_include_directive : require

// ELEM is how one element lies in a buffer and VALUE what a shader computes with. LOAD and STORE go from one to the
// other, LOAD2 and STORE2, LOAD4 and STORE4 with so many neighbours at once, whose index then counts pairs or vec4.
// Exactly one DTYPE_* is defined per variant. An output is WRITEONLY, since some ways of storing read what lies beside
// an element. FROM_WORD is for shaders of words: a value that comes as one, which for floats has the bits of f32.
#if defined(DTYPE_f16) || defined(DTYPE_bf16) || defined(DTYPE_u16)
#include "storage16.glsl"
#else
#define WRITEONLY writeonly
#define LOAD(b, i) b[i]
#define LOAD2(b, i) b[i]
#define LOAD4(b, i) b[i]
#define STORE(b, i, value) b[i] = value
#define STORE2(b, i, value) b[i] = value
#define STORE4(b, i, value) b[i] = value
#define VALUE ELEM
#define FROM_WORD(word) (word)
#define VALUE4 ELEM4
#if defined(DTYPE_f32)
#define VALUE_IS_FLOAT
#define ELEM float
#define ELEM2 vec2
#define ELEM4 vec4
#elif defined(DTYPE_u32)
#define ELEM uint
#define ELEM4 uvec4
#elif defined(DTYPE_i32)
#define ELEM int
#define ELEM4 ivec4
#elif defined(DTYPE_i64)
#define ELEM uvec2   // two's complement, the low word first: int64.glsl
#define ELEM4 uvec4  // four words, which are two elements
#else
#error "no DTYPE_* is defined"
#endif
#endif

// What is scratch for some routes, which keep sums in f32 there, and the call's own for others: an output (Y_F32) or
// a first operand (X_F32). The kernels that have them declare it: vkconv/shaders.
#ifdef X_F32
#define X_ELEM float
#define X_ELEM2 vec2
#define X_ELEM4 vec4
#define LOAD_X(b, i) b[i]
#define LOAD_X2(b, i) b[i]
#define LOAD_X4(b, i) b[i]
#else
#define X_ELEM ELEM
#define X_ELEM2 ELEM2
#define X_ELEM4 ELEM4
#define LOAD_X(b, i) LOAD(b, i)
#define LOAD_X2(b, i) LOAD2(b, i)
#define LOAD_X4(b, i) LOAD4(b, i)
#endif
#ifdef Y_F32
#define Y_ELEM float
#define Y_ELEM2 vec2
#define Y_ELEM4 vec4
#define STORE_Y(b, i, value) b[i] = value
#define STORE_Y2(b, i, value) b[i] = value
#define STORE_Y4(b, i, value) b[i] = value
#else
#define Y_ELEM ELEM
#define Y_ELEM2 ELEM2
#define Y_ELEM4 ELEM4
#define STORE_Y(b, i, value) STORE(b, i, value)
#define STORE_Y2(b, i, value) STORE2(b, i, value)
#define STORE_Y4(b, i, value) STORE4(b, i, value)
#endif

// What a texel of a texture is where one is stored; what is sampled tells by itself.
#ifdef DTYPE_f16
#define TEXEL_FORMAT rgba16f
#else
#define TEXEL_FORMAT rgba32f
#endif

// Made from the kernel's declaration in vkconv/shaders: workgroup size, specialization constants, push constants,
// buffers.
#include "interface.glsl"
#if defined(DTYPE_f16) || defined(DTYPE_bf16)
#include "conversions16.glsl"
#endif

// Index of this invocation in a 1-D grid that linear_groups() may have folded over y.
uint flat_index() {
    return gl_GlobalInvocationID.y * (gl_NumWorkGroups.x * gl_WorkGroupSize.x) + gl_GlobalInvocationID.x;
}

// Index of this workgroup in a 1-D grid that linear_groups() may have folded over y: the same in every lane.
uint flat_group() {
    return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
}
