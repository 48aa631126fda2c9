// Floats rounded to the bits of elements, several at a time, for kernels that multiply cooperative matrices.
#ifdef DTYPE_f16
// The conversions that halves.glsl does by a dozen instructions, as one: rounded to nearest, ties to even, which is an
// execution mode that the device must have (RoundingModeRTE of 16 bits).
#extension GL_EXT_spirv_intrinsics : require
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4467], 4462, 16);
uint rounded2(vec2 v) { return packFloat2x16(f16vec2(v)); }
#else
uint rounded2(vec2 v) { return to_bits2(v); }
#endif

uvec2 rounded4(vec4 v) { return uvec2(rounded2(v.xy), rounded2(v.zw)); }

uvec4 rounded8(vec4 low, vec4 high) { return uvec4(rounded4(low), rounded4(high)); }

// Puts the bits of element q into an 8-wide vector, where they are 0 so far.
void insert_bits(inout uvec4 vec8, int q, uint bits) { vec8[q / 2] |= bits << (16 * (q & 1)); }
