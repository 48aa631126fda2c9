#include "narrow.hpp"

#include "errors.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define VKCONV_F16C 1
#include <immintrin.h>
#endif

namespace vkconv {
namespace {

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

[[maybe_unused]] float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

#ifdef __aarch64__

uint16_t f16_of(float value) {
  const auto half = static_cast<__fp16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

#else

uint16_t f16_of(float value) {
  const uint32_t sign = bits_of(value) >> 16 & 0x8000;
  uint32_t u = bits_of(value) & 0x7fffffff;
  if (u > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (u >> 13 & 0x1ff));
  if (u >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 2^16, which no rounding brings back
  // Below 2^-14: one ulp of 0.5 is the least subnormal, so that the sum is rounded to it.
  if (u < 0x38800000) return static_cast<uint16_t>(sign | (bits_of(from_bits(u) + 0.5f) - 0x3f000000));
  u += 0xc8000fff + (u >> 13 & 1);  // the other bias, and half an ulp less one for even ones
  return static_cast<uint16_t>(sign | u >> 13);
}

#endif

uint16_t bf16_of(float value) {
  const uint32_t u = bits_of(value);
  const uint32_t nan = u >> 16 | 0x40;
  const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

#ifdef VKCONV_F16C

// Eight at a time; the count that is done.
template <bool kPastCaches>
__attribute__((target("avx,f16c"))) size_t f16_by_eight(uint16_t* to, const float* from, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    if (kPastCaches)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), halves);
    else
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  if (kPastCaches) _mm_sfence();  // these stores are in no order with what another thread is told after them
  return i;
}

#endif

}  // namespace

Narrow narrow_of(const std::string& name) {
  if (name.empty()) return Narrow::none;
  if (name == "f16") return Narrow::f16;
  VKCONV_REQUIRE(name == "bf16", "elements become '', 'f16' or 'bf16', not '" << name << "'");
  return Narrow::bf16;
}

void narrow(uint16_t* to, const float* from, size_t count, Narrow type, [[maybe_unused]] bool past_caches) {
  size_t done = 0;
  if (type == Narrow::bf16) {
    for (; done < count; ++done) to[done] = bf16_of(from[done]);
    return;
  }
#ifdef VKCONV_F16C
  static const bool has_f16c = __builtin_cpu_supports("f16c") != 0;
  if (has_f16c) {
    const bool aligned = reinterpret_cast<uintptr_t>(to) % 16 == 0;
    done = past_caches && aligned ? f16_by_eight<true>(to, from, count) : f16_by_eight<false>(to, from, count);
  }
#endif
  for (; done < count; ++done) to[done] = f16_of(from[done]);
}

}  // namespace vkconv
