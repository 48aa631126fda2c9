#include "cast.hpp"

#include "errors.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define VKCONV_AVX2 1
#include <immintrin.h>
#endif

namespace vkconv {
namespace {

// The same bits as a value of another type.
template <typename To, typename From>
To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To made;
  std::memcpy(&made, &value, sizeof made);
  return made;
}

uint32_t bits_of(float value) { return bits_as<uint32_t>(value); }

float from_bits(uint32_t bits) { return bits_as<float>(bits); }

#ifdef __aarch64__

uint16_t f16_of(float value) {
  const auto half = static_cast<__fp16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

float of_f16(uint16_t bits) {
  __fp16 half;
  std::memcpy(&half, &bits, sizeof half);
  return half;
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

float of_f16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t rest = bits & 0x7fffu;
  if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest < 0x400) return from_bits(sign | bits_of(static_cast<float>(rest) * 0x1p-24f));  // subnormal
  return from_bits(sign | ((rest << 13) + 0x38000000));
}

#endif

uint16_t bf16_of(float value) {
  const uint32_t u = bits_of(value);
  const uint32_t nan = u >> 16 | 0x40;
  const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

float of_bf16(uint16_t bits) { return from_bits(static_cast<uint32_t>(bits) << 16); }

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
template <Cast kHow, bool kPastCaches>
__attribute__((target("avx2,f16c"))) size_t narrow_by_eight(uint16_t* to, const float* from, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values = _mm256_loadu_ps(from + i);
    const __m128i halves =
        kHow == Cast::to_bf16 ? bf16_of_eight(values) : _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    if (kPastCaches)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), halves);
    else
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  if (kPastCaches) _mm_sfence();  // these stores are in no order with what another thread is told after them
  return i;
}

// The same.
template <Cast kHow>
__attribute__((target("avx2,f16c"))) size_t widen_by_eight(float* to, const uint16_t* from, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    const __m256 values = kHow == Cast::from_bf16
                              ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))
                              : _mm256_cvtph_ps(halves);
    _mm256_storeu_ps(to + i, values);
  }
  return i;
}

bool has_vectors() {
  static const bool has = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
  return has;
}

#endif

void narrow(uint16_t* to, const float* from, size_t count, bool bf16, [[maybe_unused]] bool past_caches) {
  size_t done = 0;
#ifdef VKCONV_AVX2
  if (has_vectors()) {
    const bool streams = past_caches && reinterpret_cast<uintptr_t>(to) % 16 == 0;
    const auto vectors =
        bf16 ? (streams ? narrow_by_eight<Cast::to_bf16, true> : narrow_by_eight<Cast::to_bf16, false>)
             : (streams ? narrow_by_eight<Cast::to_f16, true> : narrow_by_eight<Cast::to_f16, false>);
    done = vectors(to, from, count);
  }
#endif
  for (; done < count; ++done) to[done] = bf16 ? bf16_of(from[done]) : f16_of(from[done]);
}

void widen(float* to, const uint16_t* from, size_t count, bool bf16) {
  size_t done = 0;
#ifdef VKCONV_AVX2
  if (has_vectors()) {
    const auto vectors = bf16 ? widen_by_eight<Cast::from_bf16> : widen_by_eight<Cast::from_f16>;
    done = vectors(to, from, count);
  }
#endif
  // Two loops, which compilers make vectors of.
  if (bf16)
    for (; done < count; ++done) to[done] = of_bf16(from[done]);
  else
    for (; done < count; ++done) to[done] = of_f16(from[done]);
}

// One of the two; ValueError for another type.
Cast by_type(const std::string& type, Cast f16, Cast bf16) {
  if (type.empty()) return Cast::none;
  if (type == "f16") return f16;
  VKCONV_REQUIRE(type == "bf16", "floats of 32 bits are cast to and from '', 'f16' or 'bf16', not '" << type << "'");
  return bf16;
}

}  // namespace

Cast narrowing(const std::string& type) { return by_type(type, Cast::to_f16, Cast::to_bf16); }

Cast widening(const std::string& type) { return by_type(type, Cast::from_f16, Cast::from_bf16); }

size_t source_bytes(size_t nbytes, Cast how) {
  if (how == Cast::none) return nbytes;
  return how == Cast::to_f16 || how == Cast::to_bf16 ? 2 * nbytes : nbytes / 2;
}

void cast(void* to, const void* from, size_t nbytes, Cast how, bool past_caches) {
  switch (how) {
    case Cast::none: std::memcpy(to, from, nbytes); return;
    case Cast::to_f16:
    case Cast::to_bf16:
      narrow(static_cast<uint16_t*>(to), static_cast<const float*>(from), nbytes / 2, how == Cast::to_bf16, past_caches);
      return;
    case Cast::from_f16:
    case Cast::from_bf16:
      widen(static_cast<float*>(to), static_cast<const uint16_t*>(from), nbytes / 4, how == Cast::from_bf16);
  }
}

}  // namespace vkconv
