#include "vulkan.hpp"

#include <dlfcn.h>

#include "plan.hpp"

namespace player {

Functions vk;

void Functions::open() {
  void* library = nullptr;
  for (const char* name : {"libvulkan.so.1", "libvulkan.so"})
    if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw Refused("this system has no Vulkan loader: neither libvulkan.so.1 nor libvulkan.so can be loaded");
  vkGetInstanceProcAddr = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
  if (!vkGetInstanceProcAddr) throw Refused("libvulkan has no vkGetInstanceProcAddr");
  vkCreateInstance = reinterpret_cast<PFN_vkCreateInstance>(vkGetInstanceProcAddr(nullptr, "vkCreateInstance"));
  vkEnumerateInstanceLayerProperties = reinterpret_cast<PFN_vkEnumerateInstanceLayerProperties>(
      vkGetInstanceProcAddr(nullptr, "vkEnumerateInstanceLayerProperties"));
  if (!vkCreateInstance || !vkEnumerateInstanceLayerProperties) throw Refused("libvulkan makes no instance");
}

void Functions::of_instance(VkInstance made) {
#define F(name)                                                                          \
  name = reinterpret_cast<PFN_##name>(vkGetInstanceProcAddr(made, #name));               \
  if (!name) throw Refused("the driver has no " #name ", which Vulkan 1.1 has");
  PLAYER_INSTANCE_FUNCTIONS(F)
#undef F
}

void Functions::of_device(VkDevice made) {
#define F(name)                                                                          \
  name = reinterpret_cast<PFN_##name>(vkGetDeviceProcAddr(made, #name));                 \
  if (!name) throw Refused("the driver has no " #name ", which Vulkan 1.1 has");
  PLAYER_DEVICE_FUNCTIONS(F)
#undef F
}

void check(VkResult result, const std::string& what) {
  if (result == VK_SUCCESS) return;
  const char* name = result == VK_ERROR_DEVICE_LOST            ? "the device is lost"
                     : result == VK_ERROR_OUT_OF_DEVICE_MEMORY ? "out of device memory"
                     : result == VK_ERROR_OUT_OF_HOST_MEMORY   ? "out of host memory"
                     : result == VK_ERROR_INCOMPATIBLE_DRIVER  ? "no driver fits"
                     : result == VK_TIMEOUT                    ? "no answer in time"
                                                               : "an error";
  throw Failed{what + ": " + name + " (VkResult " + std::to_string(result) + ")", result == VK_ERROR_DEVICE_LOST};
}

}  // namespace player
