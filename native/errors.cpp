#include "errors.hpp"
#include "vulkan_tables.hpp"

#include <vulkan/vulkan.hpp>

#include <cstdio>
#include <utility>

namespace vkconv {

std::string result_name(VkResult result) {
  const char* name = find_name(kResult, result);
  return name != nullptr ? name : "VkResult(" + std::to_string(static_cast<int>(result)) + ")";
}

std::string hex(uint32_t word) {
  char digits[11];
  std::snprintf(digits, sizeof digits, "0x%08x", word);
  return digits;
}

namespace {

std::string join(const std::string& call, const std::string& text) { return call + ": " + text; }

VulkanError::Kind kind_of(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
      return VulkanError::Kind::out_of_memory;
    case VK_ERROR_DEVICE_LOST:
      return VulkanError::Kind::device_lost;
    case VK_TIMEOUT:
      return VulkanError::Kind::timeout;
    default:
      return VulkanError::Kind::generic;
  }
}

// Owned by the module for the life of the process: the translator may run until the interpreter is gone.
PyObject* error_types[4] = {};

void raise(const VulkanError& error) {
  PyObject* type = error_types[static_cast<int>(error.kind)];
  py::object instance = py::reinterpret_borrow<py::object>(type)(error.what());
  instance.attr("result") = error.result;
  instance.attr("call") = error.call;
  if (error.kind == VulkanError::Kind::out_of_memory) {
    instance.attr("requested_bytes") = error.requested_bytes;
    instance.attr("available_bytes") = error.available_bytes;
  }
  PyErr_SetObject(type, instance.ptr());
}

}  // namespace

VulkanError::VulkanError(Kind kind, std::string result, std::string call, const std::string& text)
    : std::runtime_error(join(call, text)), kind(kind), result(std::move(result)), call(std::move(call)) {}

VulkanError::VulkanError(VkResult code, std::string call, const std::string& detail)
    : VulkanError(kind_of(code), result_name(code), std::move(call),
                  result_name(code) + (detail.empty() ? "" : " (" + detail + ")")) {}

VulkanError VulkanError::misuse(std::string call, const std::string& text) {
  return VulkanError(Kind::generic, "", std::move(call), text);
}

VulkanError VulkanError::timed_out(std::string call, uint64_t timeout_ns) {
  char text[64];
  std::snprintf(text, sizeof text, "the device did not finish within %g s", static_cast<double>(timeout_ns) / 1e9);
  return VulkanError(Kind::timeout, result_name(VK_TIMEOUT), std::move(call), text);
}

VulkanError VulkanError::out_of_memory(std::string call, uint64_t requested_bytes, uint64_t available_bytes,
                                       const std::string& text) {
  VulkanError error(Kind::out_of_memory, result_name(VK_ERROR_OUT_OF_DEVICE_MEMORY), std::move(call), text);
  error.requested_bytes = requested_bytes;
  error.available_bytes = available_bytes;
  return error;
}

void register_errors(py::module_& module) {
  const auto define = [&](VulkanError::Kind kind, const char* name, PyObject* base, const char* doc) {
    const std::string qualified = "vkconv.backend._bridge." + std::string(name);
    PyObject* type = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, base, nullptr);
    if (type == nullptr) throw py::error_already_set();
    py::object owner = py::reinterpret_borrow<py::object>(type);
    owner.attr("result") = "";
    owner.attr("call") = "";
    module.add_object(name, owner);
    error_types[static_cast<int>(kind)] = type;
    return type;
  };
  using Kind = VulkanError::Kind;
  PyObject* base = define(Kind::generic, "VulkanError", PyExc_RuntimeError,
                          "A Vulkan call failed (`result` is its VkResult, `call` its name), or an object of the bridge was "
                          "used when it must not be (`result` is empty).");
  PyObject* memory = define(Kind::out_of_memory, "OutOfMemoryError", base,
                            "The device or host memory does not hold `requested_bytes`; `available_bytes` were left.");
  py::reinterpret_borrow<py::object>(memory).attr("requested_bytes") = 0;
  py::reinterpret_borrow<py::object>(memory).attr("available_bytes") = 0;
  define(Kind::device_lost, "DeviceLostError", base, "The device stopped: close it, and create it anew.");
  define(Kind::timeout, "TimeoutError_", base, "The device did not finish in the time allowed; it still works on.");

  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const VulkanError& error) {
      raise(error);
    } catch (const vk::SystemError& error) {
      raise(VulkanError(static_cast<VkResult>(error.code().value()), "kp", error.what()));
    }
  });
}

}  // namespace vkconv
