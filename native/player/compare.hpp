// What came out, held to what is expected, element by element.
#pragma once

#include <string>
#include <vector>

#include "plan.hpp"

namespace player {

struct Compared {
  double max_abs = 0, max_rel = 0, relative = 0;  // relative: what is allowed of max_rel
  uint64_t wrong = 0, nan = 0, inf = 0, worst = 0;
  double got = 0, want = 0, allowed = 0;  // of the worst element
  std::string places;                     // where wrong elements are, along each axis
  bool ok() const { return wrong == 0; }
};

// What is expected: f64 elements; what is allowed of each, or of all; where either may also be infinite or no number.
struct Wanted {
  std::vector<double> expected, allowed;
  Bytes overflow;
  double uniform = 0, relative = 0, floor = 0;
};

double element(const char* bytes, const std::string& dtype, uint64_t index);
Compared compare(const Bytes& got, const Tensor& tensor, const Wanted& wanted);
// Elements whose bits differ; `wanted` of zero tolerance.
Compared compare_bits(const Bytes& got, const Bytes& want, const Tensor& tensor);
// `[0, 3, 2, 12]` of an element.
std::string index_text(uint64_t index, const std::vector<uint64_t>& dims);

}  // namespace player
