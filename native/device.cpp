#include "device.hpp"

#include "download.hpp"
#include "facts.hpp"
#include "memory.hpp"
#include "recording.hpp"
#include "upload.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace vkconv {
namespace {

// kp::Manager made from an existing device leaves its queue lists empty, and Manager.sequence() then reads past their end.
// C++ lets an explicit instantiation name private members; this fills the lists in.
template <auto Queues, auto Families>
struct ManagerQueues {
  friend void set_queue(kp::Manager& manager, std::shared_ptr<vk::Queue> queue, uint32_t family) {
    (manager.*Queues).push_back(std::move(queue));
    (manager.*Families).push_back(family);
  }
};
void set_queue(kp::Manager& manager, std::shared_ptr<vk::Queue> queue, uint32_t family);
template struct ManagerQueues<&kp::Manager::mComputeQueues, &kp::Manager::mComputeQueueFamilyIndices>;

// The saved pipeline cache: magic, size and FNV-1a digest of the driver's data, then the data. The digest is ours because
// drivers check only the header that Vulkan prescribes.
constexpr char kCacheMagic[8] = {'v', 'k', 'c', 'o', 'n', 'v', 'p', '1'};
constexpr size_t kCacheHeaderBytes = sizeof kCacheMagic + 2 * sizeof(uint64_t);

uint64_t fnv1a(const char* data, size_t size) {
  uint64_t digest = 14695981039346656037ull;
  for (size_t i = 0; i < size; ++i) digest = (digest ^ static_cast<uint8_t>(data[i])) * 1099511628211ull;
  return digest;
}

std::string wrap_cache(const std::string& data) {
  const uint64_t numbers[2] = {data.size(), fnv1a(data.data(), data.size())};
  std::string blob(kCacheMagic, sizeof kCacheMagic);
  blob.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  return blob + data;
}

// The driver's data, or an empty string when the blob is damaged or from another device or driver.
std::string unwrap_cache(const std::string& blob, const VkPhysicalDeviceProperties& properties) {
  VkPipelineCacheHeaderVersionOne header;
  if (blob.size() < kCacheHeaderBytes + sizeof header) return {};
  if (std::memcmp(blob.data(), kCacheMagic, sizeof kCacheMagic) != 0) return {};
  uint64_t numbers[2];
  std::memcpy(numbers, blob.data() + sizeof kCacheMagic, sizeof numbers);
  const char* data = blob.data() + kCacheHeaderBytes;
  const size_t size = blob.size() - kCacheHeaderBytes;
  if (numbers[0] != size || numbers[1] != fnv1a(data, size)) return {};
  std::memcpy(&header, data, sizeof header);
  if (header.headerSize < sizeof header || header.headerSize > size ||
      header.headerVersion != VK_PIPELINE_CACHE_HEADER_VERSION_ONE || header.vendorID != properties.vendorID ||
      header.deviceID != properties.deviceID ||
      std::memcmp(header.pipelineCacheUUID, properties.pipelineCacheUUID, VK_UUID_SIZE) != 0)
    return {};
  return std::string(data, size);
}

// A cache with the blob's pipelines (true), or an empty one when they cannot be used.
bool create_cache(const Core& core, const std::string& blob, VkPipelineCache* cache) {
  VkPhysicalDeviceProperties properties;
  vkGetPhysicalDeviceProperties(core.physical, &properties);
  const std::string data = unwrap_cache(blob, properties);
  VkPipelineCacheCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
  info.initialDataSize = data.size();
  info.pInitialData = data.data();
  if (!data.empty() && vkCreatePipelineCache(core.handle, &info, nullptr, cache) == VK_SUCCESS) return true;
  info.initialDataSize = 0;
  info.pInitialData = nullptr;
  check(vkCreatePipelineCache(core.handle, &info, nullptr, cache), "vkCreatePipelineCache");
  return false;
}

void create_sampler(Core& core) {
  VkSamplerCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO;
  info.magFilter = info.minFilter = VK_FILTER_NEAREST;
  info.mipmapMode = VK_SAMPLER_MIPMAP_MODE_NEAREST;
  info.addressModeU = info.addressModeV = info.addressModeW = VK_SAMPLER_ADDRESS_MODE_CLAMP_TO_EDGE;
  check(vkCreateSampler(core.handle, &info, nullptr, &core.sampler), "vkCreateSampler");
}

std::string cache_data(const Core& core, VkPipelineCache cache) {
  std::string data;
  VkResult result = VK_INCOMPLETE;
  while (result == VK_INCOMPLETE) {  // another thread may add a pipeline between the two calls
    size_t size = 0;
    check(vkGetPipelineCacheData(core.handle, cache, &size, nullptr), "vkGetPipelineCacheData");
    data.resize(size);
    result = vkGetPipelineCacheData(core.handle, cache, &size, data.data());
    data.resize(size);
  }
  check(result, "vkGetPipelineCacheData");
  return wrap_cache(data);
}

// A family that can copy and nothing else stands for engines that work beside the kernels; else the compute queue's own.
// With how many queues of it, two at most.
std::pair<uint32_t, uint32_t> choose_copy_family(const Core& core) {
  uint32_t count = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(core.physical, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  vkGetPhysicalDeviceQueueFamilyProperties(core.physical, &count, families.data());
  constexpr VkQueueFlags kOther = VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT;
  for (uint32_t i = 0; i < count; ++i)
    if ((families[i].queueFlags & VK_QUEUE_TRANSFER_BIT) != 0 && (families[i].queueFlags & kOther) == 0)
      return {i, std::min(families[i].queueCount, 2u)};
  return {core.family, 0};
}

// By the name that Vulkan 1.2 has for it, or the extension before.
template <typename Function>
Function device_function(const Core& core, const std::string& name) {
  for (const auto& known : {name, name + "KHR"})
    if (const auto found = vkGetDeviceProcAddr(core.handle, known.c_str())) return reinterpret_cast<Function>(found);
  return nullptr;
}

// Timestamps are worth more than a dedicated compute queue, so a family that has them comes first.
uint32_t choose_queue_family(Core& core) {
  uint32_t count = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(core.physical, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  vkGetPhysicalDeviceQueueFamilyProperties(core.physical, &count, families.data());
  for (const bool need_timestamps : {true, false})
    for (uint32_t i = 0; i < count; ++i)
      if ((families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0 &&
          (!need_timestamps || families[i].timestampValidBits > 0)) {
        core.timestamp_bits = families[i].timestampValidBits;
        return i;
      }
  throw VulkanError(VK_ERROR_FEATURE_NOT_PRESENT, "vkGetPhysicalDeviceQueueFamilyProperties",
                    "the device has no compute queue");
}

void read_limits(Core& core, const VkPhysicalDeviceProperties& properties, const FeatureSet& features) {
  core.limits = properties.limits;
  vkGetPhysicalDeviceMemoryProperties(core.physical, &core.memory);
  const auto offered = device_extensions(core.physical);
  core.memory_budget = offered.count("VK_EXT_memory_budget") != 0;

  VkPhysicalDeviceSubgroupSizeControlProperties subgroup{};
  subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES;
  VkPhysicalDeviceMaintenance3Properties maintenance{};
  maintenance.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES;
  VkPhysicalDeviceProperties2 query{};
  query.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  query.pNext = &maintenance;
  const bool sized = features.has("subgroupSizeControl");
  if (sized) maintenance.pNext = &subgroup;
  vkGetPhysicalDeviceProperties2(core.physical, &query);
  core.max_allocation_bytes = maintenance.maxMemoryAllocationSize;
  if (sized && (subgroup.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0) {
    core.min_subgroup_size = subgroup.minSubgroupSize;
    core.max_subgroup_size = subgroup.maxSubgroupSize;
  }
}

// Null for a device that is on no PCI bus, or does not say where.
InterruptsPtr interrupts_of(const Core& core) {
  if (device_extensions(core.physical).count(VK_EXT_PCI_BUS_INFO_EXTENSION_NAME) == 0) return nullptr;
  VkPhysicalDevicePCIBusInfoPropertiesEXT bus{};
  bus.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT;
  VkPhysicalDeviceProperties2 query{};
  query.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  query.pNext = &bus;
  vkGetPhysicalDeviceProperties2(core.physical, &query);
  char address[48];
  std::snprintf(address, sizeof address, "%04x:%02x:%02x.%x", bus.pciDomain, bus.pciBus, bus.pciDevice, bus.pciFunction);
  return std::make_shared<Interrupts>(address);
}

}  // namespace

std::vector<HeapState> heap_states(const Core& core) {
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{};
  budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
  VkPhysicalDeviceMemoryProperties2 memory{};
  memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
  if (core.memory_budget) memory.pNext = &budget;
  vkGetPhysicalDeviceMemoryProperties2(core.physical, &memory);
  std::vector<HeapState> heaps(memory.memoryProperties.memoryHeapCount);
  for (size_t i = 0; i < heaps.size(); ++i)
    heaps[i] = {memory.memoryProperties.memoryHeaps[i].size, core.memory_budget, budget.heapBudget[i],
                budget.heapUsage[i]};
  return heaps;
}

std::shared_ptr<vk::Device> kompute_device(const CorePtr& core) {
  return {new vk::Device(core->handle), [core](const vk::Device* pointer) { delete pointer; }};
}

std::shared_ptr<vk::PhysicalDevice> kompute_physical_device(const CorePtr& core) {
  return std::make_shared<vk::PhysicalDevice>(core->physical);
}

std::shared_ptr<vk::Queue> kompute_queue(const CorePtr& core) { return std::make_shared<vk::Queue>(core->queue); }

Device::Device(size_t index, const std::string& pipeline_cache, const std::vector<std::string>& disable,
               InterruptsPtr interrupts) {
  auto core = std::make_shared<Core>();
  core->instance = Instance::get();
  const auto physical = core->instance->physical_devices();
  if (index >= physical.size())
    throw py::index_error("Vulkan device " + std::to_string(index) + " of " + std::to_string(physical.size()));
  core->physical = physical[index];
  VkPhysicalDeviceProperties properties;
  vkGetPhysicalDeviceProperties(core->physical, &properties);
  if (properties.apiVersion < VK_API_VERSION_1_1)
    throw VulkanError(VK_ERROR_INCOMPATIBLE_DRIVER, "Device", std::string(properties.deviceName) + " offers only Vulkan 1.0");
  core->family = choose_queue_family(*core);
  const auto [copy_family, copy_queues] = choose_copy_family(*core);
  core->copy_family = copy_family;
  core->back_family = copy_queues == 2 ? copy_family : core->family;

  const FeatureSet features(*core->instance, core->physical, {disable.begin(), disable.end()});
  std::vector<const char*> extensions;
  for (const auto& name : features.extensions()) extensions.push_back(name.c_str());
  const float priorities[] = {1.0f, 1.0f};
  VkDeviceQueueCreateInfo queues[2]{};
  for (auto& queue : queues) {
    queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
    queue.queueFamilyIndex = &queue == queues ? core->family : core->copy_family;
    queue.queueCount = &queue == queues ? 1 : copy_queues;
    queue.pQueuePriorities = priorities;
  }
  VkDeviceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  info.pNext = features.chain();
  info.queueCreateInfoCount = core->copy_family == core->family ? 1 : 2;
  info.pQueueCreateInfos = queues;
  info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  check(vkCreateDevice(core->physical, &info, nullptr, &core->handle), "vkCreateDevice");
  vkGetDeviceQueue(core->handle, core->family, 0, &core->queue);
  vkGetDeviceQueue(core->handle, core->copy_family, 0, &core->copy_queue);
  vkGetDeviceQueue(core->handle, core->back_family, copy_queues == 2 ? 1 : 0, &core->back_queue);
  if (features.has("timelineSemaphore")) {
    core->wait_semaphores = device_function<PFN_vkWaitSemaphores>(*core, "vkWaitSemaphores");
    core->semaphore_value = device_function<PFN_vkGetSemaphoreCounterValue>(*core, "vkGetSemaphoreCounterValue");
    if (core->semaphore_value == nullptr) core->wait_semaphores = nullptr;
  }
  core->pipeline_robustness = features.has("pipelineRobustness");
  read_limits(*core, properties, features);
  allow_imports(*core, features.extensions());
  core->interrupts = interrupts != nullptr ? std::move(interrupts) : interrupts_of(*core);
  core->cache_loaded = create_cache(*core, pipeline_cache, &core->cache);
  create_sampler(*core);
  static std::once_flag registered;
  std::call_once(registered, leave_before_the_driver);

  features_ = features.features();
  extensions_ = features.extensions();
  core_ = std::move(core);
}

Device::~Device() {
  if (manager_ && in_forked_child()) keep_for_ever(std::move(manager_));  // as in let_go()
}

const CorePtr& Device::core(const char* call) const {
  if (!core_) throw VulkanError::misuse(call, "the device is closed");
  return core_;
}

void Device::adopt(const std::shared_ptr<Closable>& child) {
  if (children_.size() == children_.capacity())
    children_.erase(std::remove_if(children_.begin(), children_.end(), [](const auto& item) { return item.expired(); }),
                    children_.end());
  children_.push_back(child);
}

py::dict Device::facts() const {
  const auto& core = this->core("Device.facts");
  return device_facts(*core->instance, core->physical);
}

py::dict Device::enabled() const {
  core("Device.enabled");
  py::dict all;
  all["features"] = py::cast(features_);
  all["extensions"] = py::cast(extensions_);
  return all;
}

py::list Device::memory() const {
  const auto& core = this->core("Device.memory");
  reap_abandoned(core);
  py::list list;
  for (const auto& heap : heap_states(*core)) {
    py::dict d;
    d["size_bytes"] = heap.size_bytes;
    d["budget_bytes"] = heap.known ? py::object(py::int_(heap.budget_bytes)) : py::none();
    d["usage_bytes"] = heap.known ? py::object(py::int_(heap.usage_bytes)) : py::none();
    list.append(d);
  }
  return list;
}

std::shared_ptr<kp::Manager> Device::manager() {
  const auto& core = this->core("Device.manager");
  if (!manager_) {
    // The manager may outlive the device object, so its instance pointer keeps the device alive too.
    const std::shared_ptr<vk::Instance> instance(new vk::Instance(core->instance->handle),
                                                 [core](const vk::Instance* pointer) { delete pointer; });
    manager_ = std::make_shared<kp::Manager>(instance, kompute_physical_device(core), kompute_device(core));
    set_queue(*manager_, kompute_queue(core), core->family);
  }
  return manager_;
}

std::string Device::pipeline_cache() const {
  const auto& core = this->core("Device.pipeline_cache");
  return cache_data(*core, core->cache);
}

std::string Device::merge_pipeline_cache(const std::string& blob) const {
  const auto& core = this->core("Device.merge_pipeline_cache");
  // Into a cache of its own: Vulkan forbids other threads to compile with the one that is merged into.
  Handle<VkPipelineCache, vkDestroyPipelineCache> merged(core);
  create_cache(*core, blob, merged.out());
  check(vkMergePipelineCaches(core->handle, merged.get(), 1, &core->cache), "vkMergePipelineCaches");
  return cache_data(*core, merged.get());
}

std::shared_ptr<Buffer> Device::buffer(uint64_t nbytes, const std::string& kind) {
  const auto& core = this->core("Device.buffer");
  reap_abandoned(core);
  auto made = std::make_shared<Buffer>(core, nbytes, kind);
  adopt(made);
  return made;
}

std::optional<std::pair<std::shared_ptr<Buffer>, uint64_t>> Device::imported(const py::array& data) {
  const auto& core = this->core("Device.imported");
  reap_abandoned(core);
  auto pages = import_pages(core, data);
  if (!pages) return std::nullopt;
  auto made = std::make_shared<Buffer>(std::move(pages->first));
  adopt(made);
  return std::pair(std::move(made), pages->second);
}

std::shared_ptr<Image> Device::image(uint32_t width, uint32_t height, uint32_t depth, const std::string& format) {
  const auto& core = this->core("Device.image");
  reap_abandoned(core);
  auto made = std::make_shared<Image>(core, width, height, depth, format);
  adopt(made);
  return made;
}

std::shared_ptr<Pipeline> Device::pipeline(const std::string& spirv, const Pipeline::Bindings& bindings, uint32_t push_bytes,
                                           const std::vector<uint32_t>& spec, uint32_t subgroup_size) {
  const CorePtr core = this->core("Device.pipeline");  // a copy: another thread may close the device meanwhile
  auto made = std::make_shared<Pipeline>(core, spirv, bindings, push_bytes, spec, subgroup_size);
  this->core("Device.pipeline");
  adopt(made);
  return made;
}

std::shared_ptr<Recording> Device::recording(uint32_t timestamps) {
  auto made = std::make_shared<Recording>(core("Device.recording"), timestamps);
  adopt(made);
  return made;
}

std::shared_ptr<Upload> Device::upload(const Buffer& staging, const Buffer& target, uint64_t nbytes, uint64_t chunk_bytes) {
  auto made = std::make_shared<Upload>(core("Device.upload"), staging, target, nbytes, chunk_bytes);
  adopt(made);
  return made;
}

std::shared_ptr<Download> Device::download(const Buffer& source, const Buffer& staging, uint64_t nbytes, uint64_t chunk_bytes) {
  auto made = std::make_shared<Download>(core("Device.download"), source, staging, nbytes, chunk_bytes);
  adopt(made);
  return made;
}

std::vector<int> Device::interrupt_cpus() const {
  const auto& core = this->core("Device.interrupt_cpus");
  return core->interrupts != nullptr ? core->interrupts->cpus() : std::vector<int>();
}

size_t Device::abandoned() const { return reap_abandoned(core("Device.abandoned")); }

bool Device::wait_idle(uint64_t timeout_ns) {
  const CorePtr core = this->core("Device.wait_idle");
  VkFenceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
  std::list<VkFence> made{VK_NULL_HANDLE};  // so that to abandon it takes no memory
  VkFence& fence = made.front();
  check(vkCreateFence(core->handle, &info, nullptr, &fence), "vkCreateFence");
  const auto abandon = [&] { core->abandoned_fences.splice(core->abandoned_fences.end(), made); };
  bool submitted = false;
  bool idle = false;
  try {
    // An empty submission signals its fence when all earlier work is done; unlike vkDeviceWaitIdle it can be interrupted.
    idle = wait_fence(*core, fence, timeout_ns, 0, [&] {
      const std::lock_guard<std::mutex> lock(core->queue_mutex);
      check(vkQueueSubmit(core->queue, 0, nullptr, fence), "vkQueueSubmit");
      submitted = true;
    });
  } catch (...) {
    if (submitted) {
      abandon();
    } else {
      vkDestroyFence(core->handle, fence, nullptr);
    }
    throw;
  }
  if (idle) {
    vkDestroyFence(core->handle, fence, nullptr);
  } else {
    abandon();
  }
  return idle;
}

void Device::close() {
  constexpr uint64_t kPatienceNs = 2'000'000'000;  // with work that was abandoned and may never end
  if (!core_ || in_forked_child()) return;
  try {
    // Past that, what is in flight keeps all that it needs, the device included, until it is done.
    wait_idle(reap_abandoned(core_) > 0 ? kPatienceNs : UINT64_MAX);
  } catch (const VulkanError& error) {
    if (error.kind != VulkanError::Kind::device_lost) throw;  // a lost device has nothing left to wait for
  }
  auto children = std::move(children_);
  const CorePtr core = std::move(core_);
  manager_.reset();
  for (const auto& child : children)
    if (const auto alive = child.lock()) alive->release();
  reap_abandoned(core);
}

}  // namespace vkconv
