// Floats of 32 bits become floats of 16 on their way through the host, and the other way round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace vkconv {

// What is done to elements: nothing, or floats of 32 bits become IEEE binary16 or bfloat16, or are made of them.
enum class Cast { none, to_f16, to_bf16, from_f16, from_bf16 };

// ValueError for a type that is not "", "f16" or "bf16".
Cast narrowing(const std::string& type);
Cast widening(const std::string& type);

// How many bytes become so many.
size_t source_bytes(size_t nbytes, Cast how);

// Makes `nbytes` of another type. Rounds to nearest, ties to even; what is too large becomes infinite, and NaN stays NaN, as
// the cast of kernels has it. With `past_caches` 16 bits are written around the caches, where the machine can.
void cast(void* to, const void* from, size_t nbytes, Cast how, bool past_caches);

}  // namespace vkconv
