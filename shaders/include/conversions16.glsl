// From the bits of an element of f16 or bf16 to f32, and back. Behind the kernel's interface, which has PACKS_HALVES.
#include "halves.glsl"
#ifdef DTYPE_f16
float from_bits(uint bits) { return f16_value(bits); }
vec2 from_bits2(uint bits) { return unpackHalf2x16(bits); }
uint to_bits(float v) { return f16_bits(v); }
uint to_bits2(vec2 v) { return f16_bits2(v); }
#else
float from_bits(uint bits) { return bf16_value(bits); }
vec2 from_bits2(uint bits) { return vec2(uintBitsToFloat(bits << 16), uintBitsToFloat(bits & 0xFFFF0000u)); }
uint to_bits(float v) { return bf16_bits(v); }
uint to_bits2(vec2 v) { return to_bits(v.x) | (to_bits(v.y) << 16); }
#endif

vec4 from_bits4(uvec2 bits) { return vec4(from_bits2(bits.x), from_bits2(bits.y)); }
uvec2 to_bits4(vec4 v) { return uvec2(to_bits2(v.xy), to_bits2(v.zw)); }
