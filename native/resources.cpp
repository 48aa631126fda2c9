// Buffers and pipelines: sizes and limits are checked here, before the driver sees them.
#include "gil.hpp"
#include "host_copy.hpp"
#include "memory.hpp"
#include "upload.hpp"

#include <algorithm>
#include <cstring>

namespace vkconv {

MemoryWish memory_wish(const std::string& kind) {
  constexpr VkMemoryPropertyFlags visible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
  constexpr VkMemoryPropertyFlags coherent = VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  constexpr VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr VkMemoryPropertyFlags cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  if (kind == "device" || kind == "streamed") return {local, {}, visible};
  if (kind == "upload") return {visible | coherent, {}, local};  // written once, in order: write-combined memory is fine
  if (kind == "download") return {visible | coherent, {cached}, local};
  if (kind == "input") return {visible, {local, coherent}, 0};
  if (kind == "output") return {visible, {cached, local, coherent}, 0};
  throw py::value_error("kind must be 'device', 'streamed', 'upload', 'download', 'input' or 'output', not '" + kind + "'");
}

namespace {

std::vector<uint32_t> candidate_types(const Core& core, uint32_t allowed, const MemoryWish& wish) {
  std::vector<uint32_t> types;
  const auto flags = [&](uint32_t type) { return core.memory.memoryTypes[type].propertyFlags; };
  for (uint32_t i = 0; i < core.memory.memoryTypeCount; ++i)
    if ((allowed >> i & 1u) != 0 && (flags(i) & wish.required) == wish.required && (flags(i) & kSpecialMemory) == 0)
      types.push_back(i);
  const auto penalty = [&](uint32_t type) {
    uint32_t lacks = 0;
    for (const VkMemoryPropertyFlags preferred : wish.preferred) lacks = 2 * lacks + ((flags(type) & preferred) == 0);
    return 2 * lacks + ((flags(type) & wish.unwanted) != 0);
  };
  std::stable_sort(types.begin(), types.end(), [&](uint32_t a, uint32_t b) { return penalty(a) < penalty(b); });
  return types;
}

}  // namespace

VkMemoryPropertyFlags allocate(const Core& core, const char* what, const VkMemoryRequirements& need,
                               const MemoryWish& wish, VkDeviceMemory* memory) {
  const auto types = candidate_types(core, need.memoryTypeBits, wish);
  if (types.empty())
    throw VulkanError(VK_ERROR_FEATURE_NOT_PRESENT, std::string("Device.") + what,
                      "the device has no memory type of this kind");
  const auto heaps = heap_states(core);
  const auto available = [&](uint32_t type) {
    const HeapState& heap = heaps[core.memory.memoryTypes[type].heapIndex];
    if (!heap.known) return heap.size_bytes;
    const uint64_t budget = std::min(heap.budget_bytes, heap.size_bytes);
    return budget > heap.usage_bytes ? budget - heap.usage_bytes : 0;
  };
  bool refused = false;
  for (const uint32_t type : types) {
    if (need.size > available(type)) continue;
    VkMemoryAllocateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
    info.allocationSize = need.size;
    info.memoryTypeIndex = type;
    const VkResult result = vkAllocateMemory(core.handle, &info, nullptr, memory);
    if (result == VK_SUCCESS) return core.memory.memoryTypes[type].propertyFlags;
    if (result != VK_ERROR_OUT_OF_DEVICE_MEMORY && result != VK_ERROR_OUT_OF_HOST_MEMORY)
      throw VulkanError(result, "vkAllocateMemory");
    refused = true;
  }
  const uint32_t heap_index = core.memory.memoryTypes[types.front()].heapIndex;
  const HeapState& heap = heaps[heap_index];
  Text text;
  text << (what[0] == 'i' ? "an " : "a ") << what << " needs " << need.size << " bytes, ";
  if (refused) text << "which the driver refused although ";
  text << "heap " << heap_index << " has " << available(types.front()) << " bytes left of " << heap.size_bytes;
  if (heap.known) text << " (budget " << heap.budget_bytes << ", in use " << heap.usage_bytes << ")";
  throw VulkanError::out_of_memory("vkAllocateMemory", need.size, available(types.front()), text.str());
}

Buffer::Buffer(const CorePtr& core, uint64_t nbytes, const std::string& kind) : nbytes_(nbytes), kind_(kind) {
  const MemoryWish wish = memory_wish(kind);
  VKCONV_REQUIRE(nbytes > 0, "a buffer needs at least 1 byte");
  if (nbytes > core->max_allocation_bytes) {
    Text text;
    text << "a buffer of " << nbytes << " bytes is over maxMemoryAllocationSize " << core->max_allocation_bytes;
    throw VulkanError::out_of_memory("Device.buffer", nbytes, core->max_allocation_bytes, text.str());
  }
  auto made = std::make_shared<BufferCore>();
  made->core = core;
  made->nbytes = nbytes;
  made->padded_bytes = (nbytes + 3) / 4 * 4;
  VkBufferCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.size = made->padded_bytes;
  info.usage =
      VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  info.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  const uint32_t families[] = {core->family, core->copy_family};
  if (kind == "streamed" && families[0] != families[1]) {  // the one queue writes it, the other reads
    info.sharingMode = VK_SHARING_MODE_CONCURRENT;
    info.queueFamilyIndexCount = 2;
    info.pQueueFamilyIndices = families;
  }
  made->memory = decltype(made->memory)(core);
  made->buffer = decltype(made->buffer)(core);
  check(vkCreateBuffer(core->handle, &info, nullptr, made->buffer.out()), "vkCreateBuffer");
  VkMemoryRequirements need;
  vkGetBufferMemoryRequirements(core->handle, made->buffer.get(), &need);
  made->memory_flags = allocate(*core, "buffer", need, wish, made->memory.out());
  check(vkBindBufferMemory(core->handle, made->buffer.get(), made->memory.get(), 0), "vkBindBufferMemory");
  if ((wish.required & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) != 0)
    check(vkMapMemory(core->handle, made->memory.get(), 0, VK_WHOLE_SIZE, 0, &made->mapped), "vkMapMemory");
  core_ = std::move(made);
}

Buffer::Buffer(std::shared_ptr<BufferCore> imported)
    : nbytes_(imported->nbytes), kind_("imported"), core_(std::move(imported)) {}

bool Buffer::coherent() const {
  return (core("Buffer.coherent")->memory_flags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) != 0;
}

void Buffer::flush() const {
  constexpr auto call = "Buffer.flush";
  if (const auto range = incoherent_range(call)) {
    check(vkFlushMappedMemoryRanges(core(call)->core->handle, 1, &*range), "vkFlushMappedMemoryRanges");
  }
}

void Buffer::invalidate() const {
  constexpr auto call = "Buffer.invalidate";
  if (const auto range = incoherent_range(call)) {
    check(vkInvalidateMappedMemoryRanges(core(call)->core->handle, 1, &*range), "vkInvalidateMappedMemoryRanges");
  }
}

// Below this to let the GIL go costs more than others could do meanwhile.
constexpr uint64_t kBriefBytes = 64 << 10;

void Buffer::write(const py::array& data, unsigned threads, const std::string& narrowed) const {
  constexpr auto call = "Buffer.write";
  const auto buffer = core(call);  // a copy: close() in another thread must not pull it away
  if (buffer->mapped == nullptr)
    throw VulkanError::misuse(call, "a buffer of kind '" + kind_ + "' is not visible to the host");
  const Cast how = narrowing(narrowed);
  const uint64_t nbytes = static_cast<uint64_t>(data.nbytes()) / (how == Cast::none ? 1 : 2);
  VKCONV_REQUIRE(nbytes <= buffer->nbytes, call << ": " << nbytes << " bytes are over the buffer's " << buffer->nbytes);
  const auto strides = strides_of(call, data, nbytes, how);
  const void* from = data.data();
  // Memory that is not cached is written around the caches anyway; what the host reads too had better stay in them.
  const bool past_caches = (buffer->memory_flags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) == 0;
  if (strides && nbytes <= kBriefBytes) {
    copy_bytes(buffer->mapped, from, nbytes, 1, {}, past_caches, how, &*strides);
  } else if (nbytes <= kBriefBytes) {
    cast(buffer->mapped, from, nbytes, how, past_caches);
  } else {
    const WithoutGil release;
    copy_bytes(buffer->mapped, from, nbytes, threads, buffer->core->interrupts, past_caches, how,
               strides ? &*strides : nullptr);
  }
  flush();
}

void Buffer::read(py::array& out, unsigned threads, const std::string& widened) const {
  constexpr auto call = "Buffer.read";
  const auto buffer = core(call);
  if (buffer->mapped == nullptr)
    throw VulkanError::misuse(call, "a buffer of kind '" + kind_ + "' is not visible to the host");
  const Cast how = widening(widened);
  const uint64_t nbytes = source_bytes(static_cast<uint64_t>(out.nbytes()), how);
  VKCONV_REQUIRE(nbytes <= buffer->nbytes, call << ": " << nbytes << " bytes are over the buffer's " << buffer->nbytes);
  bytes_of(call, out, nbytes, how);
  void* to = out.mutable_data();
  invalidate();
  const auto made = static_cast<uint64_t>(out.nbytes());
  if (made <= kBriefBytes) {
    cast(to, buffer->mapped, made, how, false);
  } else {
    const WithoutGil release;
    copy_bytes(to, buffer->mapped, made, threads, buffer->core->interrupts, false, how);
  }
}

std::optional<VkMappedMemoryRange> Buffer::incoherent_range(const char* call) const {
  const auto& buffer = *core(call);
  if (buffer.mapped == nullptr)
    throw VulkanError::misuse(call, "a buffer of kind '" + kind_ + "' is not visible to the host");
  if ((buffer.memory_flags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) != 0) return std::nullopt;
  VkMappedMemoryRange range{};
  range.sType = VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE;
  range.memory = buffer.memory.get();
  range.size = VK_WHOLE_SIZE;  // a part would have to begin and end at multiples of nonCoherentAtomSize
  return range;
}

const std::shared_ptr<BufferCore>& Buffer::core(const char* call) const {
  if (!core_) throw VulkanError::misuse(call, "the buffer's device is closed");
  return core_;
}

namespace {

// Throws where a stage may not have so many of a kind.
void check_count(uint32_t count, const char* limit, uint32_t most) {
  VKCONV_REQUIRE(count <= most, count << " bindings are over " << limit << " " << most);
}

std::vector<Binding> bindings_of(const Pipeline::Bindings& given, const VkPhysicalDeviceLimits& limits) {
  if (const auto* count = std::get_if<uint32_t>(&given)) {
    check_count(*count, "maxPerStageDescriptorStorageBuffers", limits.maxPerStageDescriptorStorageBuffers);
    return std::vector<Binding>(*count, Binding::buffer);
  }
  std::vector<Binding> bindings;
  std::array<uint32_t, 3> counts{};
  for (const char letter : std::get<std::string>(given)) {
    VKCONV_REQUIRE(letter == 'b' || letter == 's' || letter == 'i',
                   "a binding is b, s or i, not '" << std::string(1, letter) << "'");
    bindings.push_back(letter == 'b' ? Binding::buffer : letter == 's' ? Binding::sampled : Binding::stored);
    ++counts[static_cast<size_t>(bindings.back())];
  }
  check_count(counts[0], "maxPerStageDescriptorStorageBuffers", limits.maxPerStageDescriptorStorageBuffers);
  check_count(counts[1], "maxPerStageDescriptorSampledImages", limits.maxPerStageDescriptorSampledImages);
  check_count(counts[1], "maxPerStageDescriptorSamplers", limits.maxPerStageDescriptorSamplers);
  check_count(counts[2], "maxPerStageDescriptorStorageImages", limits.maxPerStageDescriptorStorageImages);
  return bindings;
}

}  // namespace

Pipeline::Pipeline(const CorePtr& core, const std::string& spirv, const Bindings& bindings, uint32_t push_bytes,
                   const std::vector<uint32_t>& spec, uint32_t subgroup_size) {
  constexpr uint32_t kSpirvMagic = 0x07230203;
  uint32_t magic = 0;
  if (spirv.size() >= sizeof magic) std::memcpy(&magic, spirv.data(), sizeof magic);
  VKCONV_REQUIRE(magic == kSpirvMagic && spirv.size() % 4 == 0 && spirv.size() >= 20,
          "not a SPIR-V module: " << spirv.size() << " bytes, first word " << hex(magic));
  auto kinds = bindings_of(bindings, core->limits);
  VKCONV_REQUIRE(push_bytes <= core->limits.maxPushConstantsSize,
          push_bytes << " bytes of push constants are over maxPushConstantsSize " << core->limits.maxPushConstantsSize);
  VKCONV_REQUIRE(push_bytes % 4 == 0, push_bytes << " bytes of push constants are no multiple of 4");
  if (subgroup_size != 0) {
    VKCONV_REQUIRE(core->max_subgroup_size != 0,
            "subgroup size " << subgroup_size << " asked for, but the device cannot fix the subgroup size of compute shaders");
    VKCONV_REQUIRE(subgroup_size >= core->min_subgroup_size && subgroup_size <= core->max_subgroup_size &&
                (subgroup_size & (subgroup_size - 1)) == 0,
            "subgroup size " << subgroup_size << " is no power of two from " << core->min_subgroup_size << " to "
                             << core->max_subgroup_size);
  }

  auto made = std::make_shared<PipelineCore>();
  made->core = core;
  made->bindings = std::move(kinds);
  made->push_bytes = push_bytes;

  std::vector<VkDescriptorSetLayoutBinding> slots(made->bindings.size());
  for (uint32_t i = 0; i < slots.size(); ++i) {
    slots[i] = {};
    slots[i].binding = i;
    slots[i].descriptorType = descriptor_type(made->bindings[i]);
    slots[i].descriptorCount = 1;
    slots[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
  }
  VkDescriptorSetLayoutCreateInfo set_info{};
  set_info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO;
  set_info.bindingCount = static_cast<uint32_t>(slots.size());
  set_info.pBindings = slots.data();
  made->set_layout = decltype(made->set_layout)(core);
  check(vkCreateDescriptorSetLayout(core->handle, &set_info, nullptr, made->set_layout.out()),
        "vkCreateDescriptorSetLayout");

  const VkDescriptorSetLayout set_layout = made->set_layout.get();
  const VkPushConstantRange push{VK_SHADER_STAGE_COMPUTE_BIT, 0, push_bytes};
  VkPipelineLayoutCreateInfo layout_info{};
  layout_info.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
  layout_info.setLayoutCount = 1;
  layout_info.pSetLayouts = &set_layout;
  layout_info.pushConstantRangeCount = push_bytes > 0 ? 1 : 0;
  layout_info.pPushConstantRanges = &push;
  made->layout = decltype(made->layout)(core);
  check(vkCreatePipelineLayout(core->handle, &layout_info, nullptr, made->layout.out()), "vkCreatePipelineLayout");

  VkShaderModuleCreateInfo module_info{};
  module_info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
  module_info.codeSize = spirv.size();
  std::vector<uint32_t> words(spirv.size() / 4);
  std::memcpy(words.data(), spirv.data(), spirv.size());
  module_info.pCode = words.data();
  Handle<VkShaderModule, vkDestroyShaderModule> module(core);
  check(vkCreateShaderModule(core->handle, &module_info, nullptr, module.out()), "vkCreateShaderModule");

  std::vector<VkSpecializationMapEntry> entries(spec.size());
  for (uint32_t i = 0; i < spec.size(); ++i) entries[i] = {i, i * 4, 4};
  VkSpecializationInfo constants{};
  constants.mapEntryCount = static_cast<uint32_t>(entries.size());
  constants.pMapEntries = entries.data();
  constants.dataSize = spec.size() * sizeof(uint32_t);
  constants.pData = spec.data();
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup{};
  subgroup.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
  subgroup.requiredSubgroupSize = subgroup_size;
  VkComputePipelineCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  info.stage.pNext = subgroup_size != 0 ? &subgroup : nullptr;
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = module.get();
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = &constants;
  info.layout = made->layout.get();
  // NVIDIA's driver holds every access against its buffer unless told not to, also where no feature asks for it: a comparison a
  // load. Kernels never leave their buffers, see VKCONV_TEST_VALIDATION=gpu.
  VkPipelineRobustnessCreateInfoEXT robustness{};
  robustness.sType = VK_STRUCTURE_TYPE_PIPELINE_ROBUSTNESS_CREATE_INFO_EXT;
  robustness.storageBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT;
  robustness.uniformBuffers = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT;
  robustness.vertexInputs = VK_PIPELINE_ROBUSTNESS_BUFFER_BEHAVIOR_DISABLED_EXT;
  robustness.images = VK_PIPELINE_ROBUSTNESS_IMAGE_BEHAVIOR_DISABLED_EXT;
  if (core->pipeline_robustness) info.pNext = &robustness;
  made->pipeline = decltype(made->pipeline)(core);
  VkResult result;
  {
    const WithoutGil release;  // the driver compiles here, for seconds at times
    result = vkCreateComputePipelines(core->handle, core->cache, 1, &info, nullptr, made->pipeline.out());
  }
  check(result, "vkCreateComputePipelines");
  core_ = std::move(made);
}

const std::shared_ptr<PipelineCore>& Pipeline::core(const char* call) const {
  if (!core_) throw VulkanError::misuse(call, "the pipeline's device is closed");
  return core_;
}

}  // namespace vkconv
