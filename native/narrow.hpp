// Floats of 32 bits become floats of 16 on their way through the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vkconv {

// What elements become: what they are, IEEE binary16, or bfloat16.
enum class Narrow { none, f16, bf16 };

// ValueError for a name that is not "", "f16" or "bf16".
Narrow narrow_of(const std::string& name);

// Rounds to nearest, ties to even; what is too large becomes infinite, and NaN stays NaN, as the cast of kernels has it.
// `past_caches` writes around the caches, where the machine can.
void narrow(uint16_t* to, const float* from, size_t count, Narrow type, bool past_caches);

}  // namespace vkconv
