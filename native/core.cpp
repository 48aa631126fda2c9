#include "core.hpp"

#include "gil.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

namespace vkconv {
namespace {

std::atomic<pid_t> owner{0};  // the process that made the instance

}  // namespace

bool in_forked_child() { return owner != 0 && owner != getpid(); }

void leave_before_the_driver() {
#ifdef __GLIBC__
  on_exit(
      [](int status, void*) {
        if (!in_forked_child() && !work_in_flight()) return;
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
#endif
}

std::shared_ptr<Instance> Instance::get() {
  static std::mutex mutex;
  // Kept to the end of the process and never destroyed: a driver library that is loaded and unloaded again and again
  // uses up the static TLS space of the process (seen with NVIDIA's, on an H200: the tenth time it no longer loads).
  static auto& shared = *new std::shared_ptr<Instance>();
  const std::lock_guard<std::mutex> lock(mutex);
  if (shared) return shared;

  auto instance = std::make_shared<Instance>();
  // A 1.0 loader has no vkEnumerateInstanceVersion; Kompute needs 1.1.
  const auto version_of = reinterpret_cast<PFN_vkEnumerateInstanceVersion>(
      vkGetInstanceProcAddr(VK_NULL_HANDLE, "vkEnumerateInstanceVersion"));
  uint32_t offered = VK_API_VERSION_1_0;
  if (version_of != nullptr) check(version_of(&offered), "vkEnumerateInstanceVersion");
  if (offered < VK_API_VERSION_1_1)
    throw VulkanError(VK_ERROR_INCOMPATIBLE_DRIVER, "vkEnumerateInstanceVersion", "the Vulkan loader is older than 1.1");
  instance->api_version = std::min<uint32_t>(offered, VK_API_VERSION_1_3);

  const auto extensions =
      enumerate<VkExtensionProperties>("vkEnumerateInstanceExtensionProperties", [](uint32_t* count, auto* items) {
        return vkEnumerateInstanceExtensionProperties(nullptr, count, items);
      });
  // Without it the loader hides drivers that translate to another API (MoltenVK, Dozen).
  const char* portability = "VK_KHR_portability_enumeration";
  const bool has_portability = std::any_of(extensions.begin(), extensions.end(), [&](const auto& item) {
    return std::strcmp(item.extensionName, portability) == 0;
  });

  VkApplicationInfo application{};
  application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  application.pApplicationName = "vkconv";
  application.pEngineName = "vkconv";
  application.apiVersion = instance->api_version;
  VkInstanceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pApplicationInfo = &application;
  if (has_portability) {
    info.flags = VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
    info.enabledExtensionCount = 1;
    info.ppEnabledExtensionNames = &portability;
  }
  check(vkCreateInstance(&info, nullptr, &instance->handle), "vkCreateInstance");
  owner = getpid();
  leave_before_the_driver();
  Py_AtExit(leave_before_the_driver);
  shared = instance;
  return instance;
}

std::vector<VkPhysicalDevice> Instance::physical_devices() const {
  return enumerate<VkPhysicalDevice>("vkEnumeratePhysicalDevices", [this](uint32_t* count, VkPhysicalDevice* items) {
    return vkEnumeratePhysicalDevices(handle, count, items);
  });
}

Instance::~Instance() {
  if (handle != VK_NULL_HANDLE && !in_forked_child()) vkDestroyInstance(handle, nullptr);
}

Core::~Core() {
  if (handle == VK_NULL_HANDLE || in_forked_child()) return;
  vkDeviceWaitIdle(handle);  // kp may have left work of its own on the queue; a lost device returns at once
  for (const VkFence fence : abandoned_fences) vkDestroyFence(handle, fence, nullptr);
  for (const Timeline& timeline : timelines) vkDestroySemaphore(handle, timeline.semaphore, nullptr);
  if (cache != VK_NULL_HANDLE) vkDestroyPipelineCache(handle, cache, nullptr);
  if (sampler != VK_NULL_HANDLE) vkDestroySampler(handle, sampler, nullptr);
  vkDestroyDevice(handle, nullptr);
}

bool wait_fence(const Core& core, VkFence fence, uint64_t timeout_ns, double spin_us,
                const std::function<void()>& submit, uint64_t sleep_ns) {
  using Clock = std::chrono::steady_clock;
  constexpr uint64_t kSliceNs = 50'000'000;
  const auto start = Clock::now();
  const auto elapsed_ns = [&] {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  };
  const auto block = [&] {
    const uint64_t elapsed = elapsed_ns();
    const uint64_t left = timeout_ns > elapsed ? timeout_ns - elapsed : 0;
    return vkWaitForFences(core.handle, 1, &fence, VK_TRUE, std::min(left, kSliceNs));
  };

  VkResult result;
  {
    // One release for all three steps: taking the GIL back in between can cost a switch interval of 5 ms.
    const WithoutGil release;
    if (submit) submit();
    sleep_ns = std::min({sleep_ns, timeout_ns, kSliceNs});
    if (sleep_ns > 0) vkWaitForFences(core.handle, 1, &fence, VK_TRUE, sleep_ns);  // what came of it, the next call says
    if (core.interrupts != nullptr && spin_us > 0) {
      core.interrupts->refresh();  // while the device is at work
      core.interrupts->step_aside();
    }
    const auto spin_ns = std::min(timeout_ns, elapsed_ns() + static_cast<uint64_t>(spin_us * 1e3));
    do {
      result = vkGetFenceStatus(core.handle, fence);
    } while (result == VK_NOT_READY && elapsed_ns() < spin_ns);
    if (result == VK_NOT_READY) result = block();
  }
  while (result == VK_TIMEOUT) {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (elapsed_ns() >= timeout_ns) return false;
    const WithoutGil release;
    result = block();
  }
  check(result, "vkWaitForFences");
  return true;
}

}  // namespace vkconv
