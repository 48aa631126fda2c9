// The device: what it is, what of a plan's needs it has, its memory, pipelines and queue. There is one in a process,
// which ends with it: a driver that is lost or still at work may not let go.
#pragma once

#include <string>
#include <vector>

#include "plan.hpp"
#include "vulkan.hpp"

namespace player {

// Everything that has to be switched on, and what a plan may ask for: read once.
struct Facts {
  VkPhysicalDeviceProperties properties{};
  VkPhysicalDeviceDriverProperties driver{};
  VkPhysicalDeviceSubgroupProperties subgroup{};
  VkPhysicalDeviceMaintenance3Properties maintenance{};
  VkPhysicalDeviceSubgroupSizeControlPropertiesEXT sizes{};
  VkPhysicalDeviceFloatControlsProperties floats{};
  VkPhysicalDeviceFeatures2 features{};
  VkPhysicalDevice16BitStorageFeatures storage16{};
  VkPhysicalDevice8BitStorageFeatures storage8{};
  VkPhysicalDeviceShaderFloat16Int8Features small{};
  VkPhysicalDeviceShaderAtomicFloatFeaturesEXT atomics{};
  VkPhysicalDeviceSubgroupSizeControlFeaturesEXT size_control{};
  VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot_product{};
  VkPhysicalDeviceMemoryProperties memory{};
  std::vector<std::string> extensions;

  bool has(const char* extension) const;
  std::string driver_text() const;
  uint64_t heap_bytes() const;  // of the device's own memory, the largest
};

// A buffer, or a texture, which has an image in place of one.
struct Buffer {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkImage image = VK_NULL_HANDLE;
  VkImageView view = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  char* mapped = nullptr;
  uint64_t nbytes = 0;
};

// What Vulkan calls a binding of a kind, and an image of a texture.
VkDescriptorType descriptor_type(char kind);
VkImageCreateInfo image_info(const BufferLine& line);

struct Pipeline {
  VkDescriptorSetLayout set = VK_NULL_HANDLE;
  VkPipelineLayout layout = VK_NULL_HANDLE;
  VkPipeline pipeline = VK_NULL_HANDLE;
  double compile_us = 0;
};

class Device {
 public:
  // The device of that place in Vulkan's list, or with that in its name; `validate` takes the validation layer along.
  Device(const std::string& selector, bool validate);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Facts facts;
  uint32_t timestamp_bits = 0;
  bool validated = false;
  bool dead = false;  // lost or still at work after its time: nothing of it can be released

  // Refused, naming the first limit or capability that the device does not have.
  void require(const Plan& plan) const;
  std::string info_json() const;

  Buffer buffer(uint64_t nbytes, Kind kind);
  Buffer texture(const BufferLine& line);
  void release(Buffer& buffer);
  Pipeline pipeline(const PipelineLine& line, const Bytes& code, bool cached);  // cached: one of the same may be there
  void release(Pipeline& pipeline);
  VkCommandBuffer commands();
  void release(VkCommandBuffer buffer);
  void wait();
  void submit(VkCommandBuffer buffer, uint64_t limit_ns);

  VkDevice handle() const { return device_; }
  VkSampler sampler() const { return sampler_; }  // nearest: texels come as they are
  uint64_t messages() const { return messages_; }
  const std::string& first_message() const { return first_message_; }

 private:
  VkInstance instance_ = VK_NULL_HANDLE;
  VkPhysicalDevice physical_ = VK_NULL_HANDLE;
  VkDevice device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  uint32_t family_ = 0;
  VkPipelineCache cache_ = VK_NULL_HANDLE;
  VkSampler sampler_ = VK_NULL_HANDLE;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  uint64_t messages_ = 0;
  std::string first_message_;

  void make_instance(bool validate);
  void find(const std::string& selector);
  void read_facts();
  void require_texture(const BufferLine& line) const;
  void make_device();
  uint32_t memory_type(uint32_t allowed, Kind kind) const;
  static VKAPI_ATTR VkBool32 VKAPI_CALL told(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
                                             const VkDebugUtilsMessengerCallbackDataEXT*, void*);
};

}  // namespace player
