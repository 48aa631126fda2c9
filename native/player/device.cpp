#include "device.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>

namespace player {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Refused(what); }

template <typename T, typename Call>
std::vector<T> all_of(Call call) {
  uint32_t count = 0;
  call(&count, nullptr);
  std::vector<T> found(count);
  call(&count, found.data());
  found.resize(count);
  return found;
}

// Structs in a chain, for Vulkan to fill in or to read.
template <typename Head>
class Chain {
 public:
  explicit Chain(Head& head) : last_(reinterpret_cast<VkBaseOutStructure*>(&head)) { last_->pNext = nullptr; }
  template <typename T>
  void add(T& part, VkStructureType type) {
    part.sType = type;
    part.pNext = nullptr;
    last_->pNext = reinterpret_cast<VkBaseOutStructure*>(&part);
    last_ = last_->pNext;
  }

 private:
  VkBaseOutStructure* last_;
};

}  // namespace

VkDescriptorType descriptor_type(char kind) {
  return kind == 's' ? VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER : kind == 'i' ? VK_DESCRIPTOR_TYPE_STORAGE_IMAGE : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
}

VkImageCreateInfo image_info(const BufferLine& line) {
  VkImageCreateInfo info{VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO};
  info.imageType = line.extent[2] ? VK_IMAGE_TYPE_3D : VK_IMAGE_TYPE_2D;
  info.format = line.texels == "rgba16f" ? VK_FORMAT_R16G16B16A16_SFLOAT : VK_FORMAT_R32G32B32A32_SFLOAT;
  info.extent = {line.extent[0], line.extent[1], std::max(line.extent[2], 1u)};
  info.mipLevels = info.arrayLayers = 1;
  info.samples = VK_SAMPLE_COUNT_1_BIT;
  info.tiling = VK_IMAGE_TILING_OPTIMAL;
  info.usage = VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT;
  return info;
}

bool Facts::has(const char* extension) const {
  return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

std::string Facts::driver_text() const {
  const std::string name = driver.driverName, about = driver.driverInfo;
  if (!name.empty() || !about.empty()) return name + (name.empty() || about.empty() ? "" : " ") + about;
  return std::to_string(properties.driverVersion);
}

uint64_t Facts::heap_bytes() const {
  uint64_t most = 0;
  for (uint32_t i = 0; i < memory.memoryHeapCount; ++i)
    if (memory.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) most = std::max<uint64_t>(most, memory.memoryHeaps[i].size);
  return most;
}

VKAPI_ATTR VkBool32 VKAPI_CALL Device::told(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
                                            const VkDebugUtilsMessengerCallbackDataEXT* data, void* self) {
  auto* device = static_cast<Device*>(self);
  if (!device->messages_++ && data && data->pMessage) device->first_message_ = data->pMessage;
  return VK_FALSE;
}

Device::Device(const std::string& selector, bool validate) {
  vk.open();
  make_instance(validate);
  find(selector);
  read_facts();
  make_device();
}

void Device::make_instance(bool validate) {
  const char* layer = "VK_LAYER_KHRONOS_validation";
  const char* extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
  if (validate) {
    const auto layers = all_of<VkLayerProperties>(
        [](uint32_t* count, VkLayerProperties* at) { return vk.vkEnumerateInstanceLayerProperties(count, at); });
    validated = std::any_of(layers.begin(), layers.end(), [&](const auto& l) { return !std::strcmp(l.layerName, layer); });
    if (!validated) refuse("--validate: this system has no VK_LAYER_KHRONOS_validation");
  }
  VkApplicationInfo app{VK_STRUCTURE_TYPE_APPLICATION_INFO, nullptr, "vkconv player", 2, nullptr, 0, VK_API_VERSION_1_1};
  VkDebugUtilsMessengerCreateInfoEXT messenger{VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT, nullptr, 0, 0, 0, told, this};
  messenger.messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT;
  messenger.messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT;
  VkInstanceCreateInfo info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, nullptr, 0, &app, 0, nullptr, 0, nullptr};
  if (validated) {
    info.enabledLayerCount = info.enabledExtensionCount = 1;
    info.ppEnabledLayerNames = &layer;
    info.ppEnabledExtensionNames = &extension;
  }
  check(vk.vkCreateInstance(&info, nullptr, &instance_), "vkCreateInstance");
  vk.of_instance(instance_);
  if (validated) {
    const auto make = reinterpret_cast<PFN_vkCreateDebugUtilsMessengerEXT>(vk.vkGetInstanceProcAddr(instance_, "vkCreateDebugUtilsMessengerEXT"));
    VkDebugUtilsMessengerEXT made{};
    if (!make) refuse("--validate: the layer has no vkCreateDebugUtilsMessengerEXT");
    check(make(instance_, &messenger, nullptr, &made), "vkCreateDebugUtilsMessengerEXT");
  }
}

void Device::find(const std::string& selector) {
  const auto all = all_of<VkPhysicalDevice>(
      [&](uint32_t* count, VkPhysicalDevice* at) { return vk.vkEnumeratePhysicalDevices(instance_, count, at); });
  size_t place = 0;
  const auto [end, error] = std::from_chars(selector.data(), selector.data() + selector.size(), place);
  const bool by_place = error == std::errc() && end == selector.data() + selector.size();
  std::string names;
  for (size_t i = 0; i < all.size(); ++i) {
    VkPhysicalDeviceProperties properties;
    vk.vkGetPhysicalDeviceProperties(all[i], &properties);
    names += (names.empty() ? "" : ", ") + std::to_string(i) + " " + properties.deviceName;
    const bool fits = by_place ? i == place : std::strstr(properties.deviceName, selector.c_str()) != nullptr;
    if (fits && !physical_) physical_ = all[i];
  }
  if (!physical_) refuse("there is no Vulkan device " + selector + "; there are: " + (names.empty() ? "none" : names));
}

void Device::read_facts() {
  vk.vkGetPhysicalDeviceProperties(physical_, &facts.properties);
  if (facts.properties.apiVersion < VK_API_VERSION_1_1) refuse("the device has Vulkan 1.0, and packs need 1.1");
  for (const auto& extension : all_of<VkExtensionProperties>([&](uint32_t* count, VkExtensionProperties* at) {
         return vk.vkEnumerateDeviceExtensionProperties(physical_, nullptr, count, at);
       }))
    facts.extensions.emplace_back(extension.extensionName);
  VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, nullptr, {}};
  Chain asked(properties);
  asked.add(facts.subgroup, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES);
  asked.add(facts.maintenance, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES);
  facts.features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  Chain features(facts.features);
  features.add(facts.storage16, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES);
  if (facts.has("VK_KHR_driver_properties")) asked.add(facts.driver, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES);
  if (facts.has("VK_KHR_shader_float_controls")) asked.add(facts.floats, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES);
  if (facts.has("VK_EXT_subgroup_size_control")) {
    asked.add(facts.sizes, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT);
    features.add(facts.size_control, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT);
  }
  if (facts.has("VK_KHR_8bit_storage")) features.add(facts.storage8, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES);
  if (facts.has("VK_KHR_shader_float16_int8")) features.add(facts.small, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES);
  if (facts.has("VK_EXT_shader_atomic_float")) features.add(facts.atomics, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT);
  if (facts.has("VK_KHR_shader_integer_dot_product")) features.add(facts.dot_product, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR);
  vk.vkGetPhysicalDeviceProperties2(physical_, &properties);
  vk.vkGetPhysicalDeviceFeatures2(physical_, &facts.features);
  vk.vkGetPhysicalDeviceMemoryProperties(physical_, &facts.memory);
}

void Device::make_device() {
  const auto families = all_of<VkQueueFamilyProperties>([&](uint32_t* count, VkQueueFamilyProperties* at) {
    vk.vkGetPhysicalDeviceQueueFamilyProperties(physical_, count, at);
    return VK_SUCCESS;
  });
  while (family_ < families.size() && !(families[family_].queueFlags & VK_QUEUE_COMPUTE_BIT)) ++family_;
  if (family_ == families.size()) refuse("the device has no compute queue");
  timestamp_bits = families[family_].timestampValidBits;
  const float priority = 1;
  const VkDeviceQueueCreateInfo queue{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, nullptr, 0, family_, 1, &priority};
  std::vector<const char*> names;
  for (const char* name : {"VK_KHR_driver_properties", "VK_KHR_shader_float_controls", "VK_EXT_subgroup_size_control", "VK_KHR_8bit_storage",
                           "VK_KHR_shader_float16_int8", "VK_EXT_shader_atomic_float", "VK_KHR_shader_integer_dot_product"})
    if (facts.has(name)) names.push_back(name);
  // The features that the device has, of those that packs ask for: what was read is the chain to switch on, but for
  // robustness and all that is for graphics.
  VkPhysicalDeviceFeatures2 wanted{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, facts.features.pNext, {}};
  wanted.features.shaderInt16 = facts.features.features.shaderInt16;
  wanted.features.shaderInt64 = facts.features.features.shaderInt64;
  VkDeviceCreateInfo info{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  info.pNext = &wanted;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = static_cast<uint32_t>(names.size());
  info.ppEnabledExtensionNames = names.data();
  check(vk.vkCreateDevice(physical_, &info, nullptr, &device_), "vkCreateDevice");
  vk.of_device(device_);
  vk.vkGetDeviceQueue(device_, family_, 0, &queue_);
  const VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr, 0, family_};
  check(vk.vkCreateCommandPool(device_, &pool, nullptr, &pool_), "vkCreateCommandPool");
  const VkPipelineCacheCreateInfo cache{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, nullptr, 0, 0, nullptr};
  check(vk.vkCreatePipelineCache(device_, &cache, nullptr, &cache_), "vkCreatePipelineCache");
  VkSamplerCreateInfo sampler{VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO};
  sampler.magFilter = sampler.minFilter = VK_FILTER_NEAREST;
  sampler.mipmapMode = VK_SAMPLER_MIPMAP_MODE_NEAREST;
  sampler.addressModeU = sampler.addressModeV = sampler.addressModeW = VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_EDGE;
  check(vk.vkCreateSampler(device_, &sampler, nullptr, &sampler_), "vkCreateSampler");
}

Buffer Device::buffer(uint64_t nbytes, Kind kind) {
  Buffer made;
  made.nbytes = std::max<uint64_t>((nbytes + 3) / 4 * 4, 4);
  VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  info.size = made.nbytes;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  check(vk.vkCreateBuffer(device_, &info, nullptr, &made.buffer), "vkCreateBuffer");
  VkMemoryRequirements requirements;
  vk.vkGetBufferMemoryRequirements(device_, made.buffer, &requirements);
  const VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, nullptr, requirements.size,
                                      memory_type(requirements.memoryTypeBits, kind)};
  check(vk.vkAllocateMemory(device_, &allocate, nullptr, &made.memory), "vkAllocateMemory of " + std::to_string(requirements.size) + " bytes");
  check(vk.vkBindBufferMemory(device_, made.buffer, made.memory, 0), "vkBindBufferMemory");
  void* mapped = nullptr;
  if (kind != Kind::Device) check(vk.vkMapMemory(device_, made.memory, 0, VK_WHOLE_SIZE, 0, &mapped), "vkMapMemory");
  made.mapped = static_cast<char*>(mapped);
  return made;
}

Buffer Device::texture(const BufferLine& line) {
  Buffer made;
  const VkImageCreateInfo info = image_info(line);
  check(vk.vkCreateImage(device_, &info, nullptr, &made.image), "vkCreateImage");
  VkMemoryRequirements requirements;
  vk.vkGetImageMemoryRequirements(device_, made.image, &requirements);
  made.nbytes = requirements.size;
  const VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, nullptr, requirements.size,
                                      memory_type(requirements.memoryTypeBits, Kind::Device)};
  check(vk.vkAllocateMemory(device_, &allocate, nullptr, &made.memory), "vkAllocateMemory of " + std::to_string(requirements.size) + " bytes");
  check(vk.vkBindImageMemory(device_, made.image, made.memory, 0), "vkBindImageMemory");
  VkImageViewCreateInfo view{VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO};
  view.image = made.image;
  view.viewType = line.extent[2] ? VK_IMAGE_VIEW_TYPE_3D : VK_IMAGE_VIEW_TYPE_2D;
  view.format = info.format;
  view.subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
  check(vk.vkCreateImageView(device_, &view, nullptr, &made.view), "vkCreateImageView");
  return made;
}

void Device::release(Buffer& buffer) {
  vk.vkDestroyImageView(device_, buffer.view, nullptr);
  vk.vkDestroyImage(device_, buffer.image, nullptr);
  vk.vkDestroyBuffer(device_, buffer.buffer, nullptr);
  vk.vkFreeMemory(device_, buffer.memory, nullptr);
  buffer = Buffer{};
}

// What the host reads is better cached, where there is such memory.
uint32_t Device::memory_type(uint32_t allowed, Kind kind) const {
  const VkMemoryPropertyFlags host = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  const VkMemoryPropertyFlags least = kind == Kind::Device ? VkMemoryPropertyFlags{VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT} : host;
  const VkMemoryPropertyFlags best = kind == Kind::Download ? host | VK_MEMORY_PROPERTY_HOST_CACHED_BIT : least;
  for (const VkMemoryPropertyFlags wanted : {best, least})
    for (uint32_t i = 0; i < facts.memory.memoryTypeCount; ++i)
      if ((allowed >> i & 1) && (facts.memory.memoryTypes[i].propertyFlags & wanted) == wanted) return i;
  refuse("the device has no memory that fits a buffer");
}

Pipeline Device::pipeline(const PipelineLine& line, const Bytes& code, bool cached) {
  Pipeline made;
  std::vector<VkDescriptorSetLayoutBinding> bindings(line.bindings);
  for (uint32_t i = 0; i < line.bindings; ++i)
    bindings[i] = {i, descriptor_type(line.kind(i)), 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
  const VkDescriptorSetLayoutCreateInfo set{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, nullptr, 0, line.bindings, bindings.data()};
  check(vk.vkCreateDescriptorSetLayout(device_, &set, nullptr, &made.set), "vkCreateDescriptorSetLayout");
  const VkPushConstantRange push{VK_SHADER_STAGE_COMPUTE_BIT, 0, line.push_bytes};
  const VkPipelineLayoutCreateInfo layout{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, nullptr, 0, 1, &made.set, line.push_bytes > 0, &push};
  check(vk.vkCreatePipelineLayout(device_, &layout, nullptr, &made.layout), "vkCreatePipelineLayout");
  std::vector<uint32_t> words(code.size() / 4);
  if (words.size() < 5 || code.size() % 4) refuse(line.file + " is no SPIR-V");
  std::memcpy(words.data(), code.data(), code.size());
  if (words[0] != 0x07230203) refuse(line.file + " is no SPIR-V");
  const VkShaderModuleCreateInfo module_info{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, nullptr, 0, code.size(), words.data()};
  VkShaderModule module{};
  check(vk.vkCreateShaderModule(device_, &module_info, nullptr, &module), "vkCreateShaderModule");
  std::vector<VkSpecializationMapEntry> entries;
  for (uint32_t i = 0; i < line.spec.size(); ++i) entries.push_back({i, 4 * i, 4});
  const VkSpecializationInfo spec{static_cast<uint32_t>(entries.size()), entries.data(), 4 * line.spec.size(), line.spec.data()};
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT sized{VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO_EXT, nullptr, line.subgroup_size};
  VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  info.stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, line.subgroup_size ? &sized : nullptr, 0, VK_SHADER_STAGE_COMPUTE_BIT, module, "main", &spec};
  info.layout = made.layout;
  const auto start = std::chrono::steady_clock::now();
  const VkResult result = vk.vkCreateComputePipelines(device_, cached ? cache_ : VK_NULL_HANDLE, 1, &info, nullptr, &made.pipeline);
  made.compile_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  vk.vkDestroyShaderModule(device_, module, nullptr);
  check(result, "vkCreateComputePipelines of " + line.name);
  return made;
}

void Device::release(Pipeline& pipeline) {
  vk.vkDestroyPipeline(device_, pipeline.pipeline, nullptr);
  vk.vkDestroyPipelineLayout(device_, pipeline.layout, nullptr);
  vk.vkDestroyDescriptorSetLayout(device_, pipeline.set, nullptr);
  pipeline = Pipeline{};
}

VkCommandBuffer Device::commands() {
  const VkCommandBufferAllocateInfo allocate{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, pool_, VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
  VkCommandBuffer made{};
  check(vk.vkAllocateCommandBuffers(device_, &allocate, &made), "vkAllocateCommandBuffers");
  return made;
}

void Device::release(VkCommandBuffer buffer) { vk.vkFreeCommandBuffers(device_, pool_, 1, &buffer); }

void Device::wait() { check(vk.vkDeviceWaitIdle(device_), "vkDeviceWaitIdle"); }

void Device::submit(VkCommandBuffer buffer, uint64_t limit_ns) {
  const VkFenceCreateInfo fence_info{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO, nullptr, 0};
  VkFence fence{};
  check(vk.vkCreateFence(device_, &fence_info, nullptr, &fence), "vkCreateFence");
  VkSubmitInfo info{VK_STRUCTURE_TYPE_SUBMIT_INFO};
  info.commandBufferCount = 1;
  info.pCommandBuffers = &buffer;
  const VkResult submitted = vk.vkQueueSubmit(queue_, 1, &info, fence);
  dead = submitted == VK_ERROR_DEVICE_LOST;
  check(submitted, "vkQueueSubmit");
  const VkResult waited = vk.vkWaitForFences(device_, 1, &fence, VK_TRUE, limit_ns);
  dead = waited != VK_SUCCESS;
  check(waited, "waiting for a run");
  vk.vkDestroyFence(device_, fence, nullptr);
}

}  // namespace player
