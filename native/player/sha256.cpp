#include "sha256.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace player {
namespace {

uint32_t rotated(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

struct Tables {
  uint32_t rounds[64], start[8];

  // The first 32 bits of the fractions of the cube roots, and square roots, of the first primes (4.2.2, 5.3.3).
  Tables() {
    int found = 0;
    for (uint32_t candidate = 2; found < 64; ++candidate) {
      bool prime = true;
      for (uint32_t i = 2; i * i <= candidate; ++i) prime &= candidate % i != 0;
      if (!prime) continue;
      rounds[found] = fraction(candidate, 3);
      if (found < 8) start[found] = fraction(candidate, 2);
      ++found;
    }
  }

  // By whole numbers: the largest r for which (r / 2^32)^power is not more than the prime.
  static uint32_t fraction(uint32_t prime, int power) {
    uint64_t root = 0;
    for (int bit = 36; bit >= 0; --bit) {
      const uint64_t next = root | uint64_t{1} << bit;
      unsigned __int128 scaled = next;
      bool fits = true;
      if (power == 2) {
        fits = scaled * next <= static_cast<unsigned __int128>(prime) << 64;
      } else {
        const unsigned __int128 square = scaled * next;  // at most 74 bits
        const unsigned __int128 high = (square >> 40) * next, low = (square & ((uint64_t{1} << 40) - 1)) * next;
        fits = high + (low >> 40) < static_cast<unsigned __int128>(prime) << 56;
      }
      if (fits) root = next;
    }
    return static_cast<uint32_t>(root);
  }
};

void block(uint32_t* state, const unsigned char* bytes, const Tables& tables) {
  uint32_t words[64];
  for (int i = 0; i < 16; ++i)
    words[i] = static_cast<uint32_t>(bytes[4 * i]) << 24 | static_cast<uint32_t>(bytes[4 * i + 1]) << 16 |
               static_cast<uint32_t>(bytes[4 * i + 2]) << 8 | bytes[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + words[i - 7] +
               (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
  }
  uint32_t v[8];
  std::memcpy(v, state, sizeof v);
  for (int i = 0; i < 64; ++i) {
    const uint32_t one = v[7] + (rotated(v[4], 6) ^ rotated(v[4], 11) ^ rotated(v[4], 25)) +
                         ((v[4] & v[5]) ^ (~v[4] & v[6])) + tables.rounds[i] + words[i];
    const uint32_t two = (rotated(v[0], 2) ^ rotated(v[0], 13) ^ rotated(v[0], 22)) +
                         ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    for (int j = 7; j > 0; --j) v[j] = v[j - 1];
    v[4] += one;
    v[0] = one + two;
  }
  for (int i = 0; i < 8; ++i) state[i] += v[i];
}

}  // namespace

std::string sha256_hex(const char* data, size_t nbytes) {
  static const Tables tables;
  uint32_t state[8];
  std::memcpy(state, tables.start, sizeof state);
  const auto* bytes = reinterpret_cast<const unsigned char*>(data);
  size_t at = 0;
  for (; at + 64 <= nbytes; at += 64) block(state, bytes + at, tables);
  std::vector<unsigned char> tail(bytes + at, bytes + nbytes);
  tail.push_back(0x80);
  while (tail.size() % 64 != 56) tail.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) tail.push_back(static_cast<unsigned char>(static_cast<uint64_t>(nbytes) * 8 >> shift));
  for (size_t i = 0; i < tail.size(); i += 64) block(state, tail.data() + i, tables);
  std::string text;
  for (uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) text.push_back("0123456789abcdef"[word >> shift & 15]);
  return text;
}

}  // namespace player
