// SHA-256 (FIPS 180-4): files of a pack are named by it.
#pragma once

#include <string>

namespace player {

std::string sha256_hex(const char* data, size_t nbytes);

}  // namespace player
