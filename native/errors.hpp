// Errors of the bridge: every failed Vulkan call becomes a VulkanError that names the call and the result.
#pragma once

#include <pybind11/pybind11.h>
#include <vulkan/vulkan_core.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace vkconv {

namespace py = pybind11;

// "VK_ERROR_DEVICE_LOST" for the enumerant, "VkResult(-123)" for one newer than the tables.
std::string result_name(VkResult result);

class VulkanError : public std::runtime_error {
 public:
  enum class Kind { generic, out_of_memory, device_lost, timeout };

  // A failed call. `detail` may add the numbers that were involved.
  VulkanError(VkResult result, std::string call, const std::string& detail = {});
  // A misuse of the bridge itself (closed, busy, still recording): no Vulkan call was made, `result` is empty.
  static VulkanError misuse(std::string call, const std::string& text);
  static VulkanError timed_out(std::string call, uint64_t timeout_ns);
  static VulkanError out_of_memory(std::string call, uint64_t requested_bytes, uint64_t available_bytes,
                                   const std::string& text);

  Kind kind = Kind::generic;
  std::string result;
  std::string call;
  uint64_t requested_bytes = 0;
  uint64_t available_bytes = 0;

 private:
  VulkanError(Kind kind, std::string result, std::string call, const std::string& text);
};

inline void check(VkResult result, const char* call) {
  if (result != VK_SUCCESS) throw VulkanError(result, call);
}

// Puts a message together. No standard stream may do it: a toolchain can link libstdc++ statically into this module while kp
// brings the shared one, and with two sets of locale facets in the process a stream crashes on the first number that it
// formats (seen with GCC 13.3 of Ubuntu 24.04). Only what needs no locale object is safe: std::string, std::to_string.
class Text {
 public:
  Text& operator<<(const std::string& part) {
    text_ += part;
    return *this;
  }
  template <typename Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
  Text& operator<<(Number number) {
    return *this << std::to_string(number);
  }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

// "0x07230203"
std::string hex(uint32_t word);

// Refuses an argument with a ValueError; `message` goes into a Text, so that it can hold both numbers of a broken limit.
#define VKCONV_REQUIRE(condition, message)      \
  do {                                          \
    if (!(condition)) {                         \
      ::vkconv::Text text_;                     \
      text_ << message;                         \
      throw pybind11::value_error(text_.str()); \
    }                                           \
  } while (false)

// A two-call Vulkan enumeration, repeated while the count changes under it.
template <typename T, typename Call>
std::vector<T> enumerate(const char* name, Call&& call) {
  std::vector<T> items;
  VkResult result = VK_INCOMPLETE;
  while (result == VK_INCOMPLETE) {
    uint32_t count = 0;
    check(call(&count, static_cast<T*>(nullptr)), name);
    items.assign(count, T{});
    result = call(&count, items.data());
    if (result == VK_SUCCESS) items.resize(count);
  }
  check(result, name);
  return items;
}

// Creates the Python exception classes in `module` and translates VulkanError and Kompute's vk::SystemError to them.
void register_errors(py::module_& module);

}  // namespace vkconv
