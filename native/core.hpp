// The objects behind the Python classes: each owns its Vulkan handle and holds the device it was made from.
#pragma once

#include "errors.hpp"
#include "interrupts.hpp"

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace vkconv {

// Whether this process is a forked child of the one that made the instance. What it inherited is not its own: drivers keep
// threads and locks that a fork does not copy, so destructors must leave it alone.
bool in_forked_child();

// Whether the device may be at work on any recording of this process.
bool work_in_flight();

// Handlers of a driver at the end of a process may wait for the device, however long it works, and in a forked child for
// threads that a fork does not copy: with NVIDIA's, on an H200, neither such a child nor its parent ended within a minute.
// These processes leave before them. What is registered last runs first, so this comes after the driver's own: once the
// instance is there, again once a device is, and again when Python has ended, since a driver may load its compiler or
// start to work at any time; where no Python ends, as in a thread's fork, the first two must do.
void leave_before_the_driver();

// Keeps what it points to for ever, and takes no memory for that: destructors have none to fail with.
template <typename T>
void keep_for_ever(std::shared_ptr<T>&& pointer) noexcept {
  alignas(std::shared_ptr<T>) unsigned char place[sizeof(std::shared_ptr<T>)];
  new (place) std::shared_ptr<T>(std::move(pointer));  // never destroyed
}

// The process's one VkInstance, shared by every device.
struct Instance {
  VkInstance handle = VK_NULL_HANDLE;
  uint32_t api_version = 0;  // what the instance was created for: 1.1 to 1.3

  static std::shared_ptr<Instance> get();
  std::vector<VkPhysicalDevice> physical_devices() const;

  Instance() = default;
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance();
};

// A timeline semaphore, and the value that it reaches when all that signals it is done.
struct Timeline {
  VkSemaphore semaphore = VK_NULL_HANDLE;
  uint64_t value = 0;
};

// The logical device with its queue, one more for copies where a family has nothing else to do, and the limits that the bridge
// itself checks against.
struct Core {
  std::shared_ptr<Instance> instance;
  VkPhysicalDevice physical = VK_NULL_HANDLE;
  VkDevice handle = VK_NULL_HANDLE;
  VkQueue queue = VK_NULL_HANDLE;
  VkQueue copy_queue = VK_NULL_HANDLE;  // `queue` itself where no family is for copies alone
  // For copies to the host, which wait for kernels and must not hold up those to the device: another queue of that family, else
  // `queue` itself.
  VkQueue back_queue = VK_NULL_HANDLE;
  VkPipelineCache cache = VK_NULL_HANDLE;
  uint32_t family = 0;
  uint32_t copy_family = 0;
  uint32_t back_family = 0;
  uint32_t timestamp_bits = 0;
  bool memory_budget = false;        // VK_EXT_memory_budget is offered
  bool pipeline_robustness = false;  // VK_EXT_pipeline_robustness is enabled
  bool cache_loaded = false;         // the pipeline cache started from saved data
  VkPhysicalDeviceLimits limits{};
  VkPhysicalDeviceMemoryProperties memory{};
  uint64_t max_allocation_bytes = 0;
  uint32_t min_subgroup_size = 0;    // both 0: a pipeline cannot ask for a subgroup size
  uint32_t max_subgroup_size = 0;
  // Null where the host's memory cannot be imported; else what its ranges begin and end at multiples of.
  PFN_vkGetMemoryHostPointerPropertiesEXT host_pointer_properties = nullptr;
  uint64_t import_alignment = 0;
  // Both null without timeline semaphores.
  PFN_vkWaitSemaphores wait_semaphores = nullptr;
  PFN_vkGetSemaphoreCounterValue semaphore_value = nullptr;
  InterruptsPtr interrupts;
  VkSampler sampler = VK_NULL_HANDLE;  // of every sampled image: nearest, so that texels come as they are
  std::mutex queue_mutex;            // vkQueueSubmit is externally synchronised
  std::mutex copy_mutex;             // the same of a queue for copies
  std::mutex second_copy_mutex;      // and of a second one
  std::list<VkFence> abandoned_fences;  // of waits for idleness that ended early: in use until the device is idle
  // Of copies that are gone, for those to come. They go with the device: Mesa's common runtime looks at one once more after the
  // fence of a submission that waited for it, and crashes where it has been destroyed by then (lavapipe, 22.3).
  std::list<Timeline> timelines;
  std::mutex timelines_mutex;

  Core() = default;
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  ~Core();

  std::mutex& copies_mutex() { return copy_queue == queue ? queue_mutex : copy_mutex; }
  std::mutex& back_mutex() { return back_queue == queue ? queue_mutex : second_copy_mutex; }
};

using CorePtr = std::shared_ptr<Core>;

// A handle made from a device, destroyed before the device is let go.
template <typename T, auto Destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(CorePtr core) : core_(std::move(core)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  Handle(Handle&& other) noexcept
      : core_(std::move(other.core_)), raw_(std::exchange(other.raw_, T{VK_NULL_HANDLE})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(core_, other.core_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Handle() {
    if (raw_ != VK_NULL_HANDLE && !in_forked_child()) Destroy(core_->handle, raw_, nullptr);
  }
  T get() const { return raw_; }
  T* out() { return &raw_; }  // for the creating call
  explicit operator bool() const { return raw_ != VK_NULL_HANDLE; }

 private:
  CorePtr core_;
  T raw_ = VK_NULL_HANDLE;
};

using FenceHandle = Handle<VkFence, vkDestroyFence>;
using QueryPoolHandle = Handle<VkQueryPool, vkDestroyQueryPool>;
using DescriptorPoolHandle = Handle<VkDescriptorPool, vkDestroyDescriptorPool>;

// A buffer with its own memory; mapped for its whole life when the host may see it.
struct BufferCore {
  CorePtr core;
  std::shared_ptr<void> imported;               // whose memory it is, where that is not the buffer's own; let go last
  Handle<VkDeviceMemory, vkFreeMemory> memory;  // before the buffer: freed after it
  Handle<VkBuffer, vkDestroyBuffer> buffer;
  void* mapped = nullptr;
  VkMemoryPropertyFlags memory_flags = 0;
  uint64_t nbytes = 0;         // as asked for
  uint64_t padded_bytes = 0;   // what vkCmdFillBuffer may write: the next multiple of 4
};

// The formats that images may have, by the names that shaders have for them, and Vulkan.
struct Format {
  const char* name;
  const char* vulkan_name;
  VkFormat format;
};
inline constexpr Format kFormats[] = {
    {"rgba32f", "VK_FORMAT_R32G32B32A32_SFLOAT", VK_FORMAT_R32G32B32A32_SFLOAT},
    {"rgba16f", "VK_FORMAT_R16G16B16A16_SFLOAT", VK_FORMAT_R16G16B16A16_SFLOAT},
};

// An image of four floats a texel with its own memory. Between recordings it is in kRestLayout, or was never written.
struct ImageCore {
  static constexpr VkImageLayout kRestLayout = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL;

  CorePtr core;
  Handle<VkDeviceMemory, vkFreeMemory> memory;  // before the image: freed after it
  Handle<VkImage, vkDestroyImage> image;
  Handle<VkImageView, vkDestroyImageView> view;
  uint32_t dims = 0;  // 2 or 3
};

// What a binding of a pipeline is to its shader.
enum class Binding { buffer, sampled, stored };

constexpr VkDescriptorType descriptor_type(Binding binding) {
  return binding == Binding::buffer    ? VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
         : binding == Binding::sampled ? VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER
                                       : VK_DESCRIPTOR_TYPE_STORAGE_IMAGE;
}

struct PipelineCore {
  CorePtr core;
  Handle<VkDescriptorSetLayout, vkDestroyDescriptorSetLayout> set_layout;
  Handle<VkPipelineLayout, vkDestroyPipelineLayout> layout;
  Handle<VkPipeline, vkDestroyPipeline> pipeline;
  std::vector<Binding> bindings;
  uint32_t push_bytes = 0;
};

// Only ever made by make_shared. Where pybind11 has no memory to register such an object with Python it deletes what the
// shared pointer still owns, without its destructor: a `free` of the inside of an allocation.
struct Shared {
  static void operator delete(void*) noexcept {}
};

// What Device.close() releases, wherever Python still holds it.
class Closable : public Shared {
 public:
  virtual ~Closable() = default;
  virtual void release() = 0;
};

// Waits for a fence with the GIL released: sleeps for sleep_ns unless it comes before, polls it for spin_us, aside from the
// device's interrupts, then blocks in slices short enough that a signal handler (Ctrl-C) runs within a tenth of a second.
// `submit`, if any, runs first under the same release. False on time-out.
bool wait_fence(const Core& core, VkFence fence, uint64_t timeout_ns, double spin_us,
                const std::function<void()>& submit = {}, uint64_t sleep_ns = 0);

}  // namespace vkconv
