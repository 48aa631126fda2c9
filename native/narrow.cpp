#include "narrow.hpp"

#include "errors.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define VKCONV_AVX2 1
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

#ifdef VKCONV_AVX2

// As bf16_of.
__attribute__((target("avx2"))) __m128i bf16_of_eight(__m256 values) {
  const __m256i u = _mm256_castps_si256(values);
  const __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  // The sign fills the upper half, so that packing, which saturates, keeps every word.
  const __m256i words = _mm256_srai_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
  return _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

// Eight at a time; the count that is done.
template <Narrow kType, bool kPastCaches>
__attribute__((target("avx2,f16c"))) size_t by_eight(uint16_t* to, const float* from, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values = _mm256_loadu_ps(from + i);
    const __m128i halves =
        kType == Narrow::bf16 ? bf16_of_eight(values) : _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
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
#ifdef VKCONV_AVX2
  static const bool by_vectors = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
  if (by_vectors) {
    const bool streams = past_caches && reinterpret_cast<uintptr_t>(to) % 16 == 0;
    const auto vectors = type == Narrow::bf16 ? (streams ? by_eight<Narrow::bf16, true> : by_eight<Narrow::bf16, false>)
                                              : (streams ? by_eight<Narrow::f16, true> : by_eight<Narrow::f16, false>);
    done = vectors(to, from, count);
  }
#endif
  for (; done < count; ++done) to[done] = type == Narrow::bf16 ? bf16_of(from[done]) : f16_of(from[done]);
}

}  // namespace vkconv
