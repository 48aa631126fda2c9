#include "compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace player {
namespace {

template <typename T>
T at(const char* bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof value, sizeof value);
  return value;
}

double of_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

double of_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Which indices of each axis wrong elements have.
class Places {
 public:
  explicit Places(const std::vector<uint64_t>& dims) : dims_(dims), seen_(dims.size()) {}

  void add(uint64_t index) {
    for (size_t axis = dims_.size(); axis-- > 0; index /= dims_[axis]) seen_[axis].insert(index % dims_[axis]);
  }

  std::string text() const {
    static const std::vector<std::vector<std::string>> names = {
        {}, {"element"}, {"row", "column"}, {"channel", "row", "column"}, {"image", "channel", "row", "column"}, {"image", "channel", "slice", "row", "column"}};
    std::string all;
    for (size_t axis = dims_.size(); axis-- > 0;) {
      const std::set<uint64_t>& found = seen_[axis];
      if (found.empty() || found.size() == dims_[axis]) continue;
      const std::string name = dims_.size() < names.size() ? names[dims_.size()][axis] : "axis " + std::to_string(axis);
      const uint64_t first = *found.begin(), last = *found.rbegin();
      all += all.empty() ? "" : ", ";
      if (found.size() == 1) all += name + " " + std::to_string(first) + (first + 1 == dims_[axis] ? ", the last," : "");
      else all += std::to_string(found.size()) + " " + name + "s from " + std::to_string(first) + " to " + std::to_string(last);
      all += " of " + std::to_string(dims_[axis]);
    }
    return all.empty() ? "all over" : all;
  }

 private:
  const std::vector<uint64_t>& dims_;
  std::vector<std::set<uint64_t>> seen_;
};

}  // namespace

double element(const char* bytes, const std::string& dtype, uint64_t i) {
  if (dtype == "f32") return at<float>(bytes, i);
  if (dtype == "f16") return of_f16(at<uint16_t>(bytes, i));
  if (dtype == "bf16") return of_bf16(at<uint16_t>(bytes, i));
  if (dtype == "i64") return static_cast<double>(at<int64_t>(bytes, i));
  if (dtype == "i32") return at<int32_t>(bytes, i);
  if (dtype == "u32") return at<uint32_t>(bytes, i);
  if (dtype == "u16") return at<uint16_t>(bytes, i);
  if (dtype == "i8") return at<int8_t>(bytes, i);
  return at<uint8_t>(bytes, i);
}

Compared compare(const Bytes& got, const Tensor& tensor, const Wanted& wanted) {
  Compared found;
  found.relative = wanted.relative;
  Places places(tensor.dims);
  double worst = -1;
  for (uint64_t i = 0; i < tensor.count; ++i) {
    const double have = element(got.data(), tensor.dtype, i), want = wanted.expected[i];
    const double allowed = wanted.allowed.empty() ? wanted.uniform : wanted.allowed[i];
    const bool either = !wanted.overflow.empty() && wanted.overflow[i];
    found.nan += std::isnan(have);
    found.inf += std::isinf(have);
    double excess = 0;  // of what is allowed; infinite where only one is finite
    bool wrong = false;
    if (either && !std::isfinite(have)) continue;
    if (std::isfinite(want) && std::isfinite(have)) {
      const double error = std::fabs(have - want);
      wrong = error > allowed;
      excess = allowed > 0 ? error / allowed : error > 0 ? INFINITY : 0;
      found.max_abs = std::max(found.max_abs, error);
      const double beyond = std::max(0.0, error - wanted.floor), scale = allowed - wanted.floor;
      if (beyond > 0) found.max_rel = std::max(found.max_rel, scale > 0 ? beyond * wanted.relative / scale : 1.0);
    } else {
      wrong = !(have == want || (std::isnan(have) && std::isnan(want)));
      excess = wrong ? INFINITY : 0;
    }
    if (wrong) ++found.wrong, places.add(i);
    if (excess > worst) worst = excess, found.worst = i, found.got = have, found.want = want, found.allowed = allowed;
  }
  if (found.wrong) found.places = places.text();
  return found;
}

Compared compare_bits(const Bytes& got, const Bytes& want, const Tensor& tensor) {
  Compared found;
  Places places(tensor.dims);
  const uint64_t width = width_of(tensor.dtype);
  for (uint64_t i = 0; i < tensor.count; ++i) {
    const double have = element(got.data(), tensor.dtype, i);
    found.nan += std::isnan(have);
    found.inf += std::isinf(have);
    if (!std::memcmp(got.data() + i * width, want.data() + i * width, width)) continue;
    const double wanted = element(want.data(), tensor.dtype, i);
    if (!found.wrong++ || std::fabs(have - wanted) > found.max_abs) found.worst = i, found.got = have, found.want = wanted;
    if (std::isfinite(have) && std::isfinite(wanted)) found.max_abs = std::max(found.max_abs, std::fabs(have - wanted));
    places.add(i);
  }
  if (found.wrong) found.places = places.text();
  return found;
}

std::string index_text(uint64_t index, const std::vector<uint64_t>& dims) {
  std::string text;
  for (size_t axis = dims.size(); axis-- > 0; index /= dims[axis]) text = std::to_string(index % dims[axis]) + (text.empty() ? "" : ", ") + text;
  return "[" + text + "]";
}

}  // namespace player
