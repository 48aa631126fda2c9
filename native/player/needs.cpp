// What plans need and devices have, by Vulkan's names; and a device's facts as a profile that vkconv imports.
#include <algorithm>
#include <functional>
#include <map>

#include "device.hpp"
#include "json.hpp"

namespace player {
namespace {

using Limits = std::map<std::string, std::function<uint64_t(const VkPhysicalDeviceLimits&)>>;

const Limits& limits() {
  static const Limits table = {
      {"maxStorageBufferRange", [](const auto& l) { return uint64_t{l.maxStorageBufferRange}; }},
      {"maxPushConstantsSize", [](const auto& l) { return uint64_t{l.maxPushConstantsSize}; }},
      {"maxPerStageDescriptorStorageBuffers", [](const auto& l) { return uint64_t{l.maxPerStageDescriptorStorageBuffers}; }},
      {"maxComputeSharedMemorySize", [](const auto& l) { return uint64_t{l.maxComputeSharedMemorySize}; }},
      {"maxComputeWorkGroupInvocations", [](const auto& l) { return uint64_t{l.maxComputeWorkGroupInvocations}; }},
      {"minStorageBufferOffsetAlignment", [](const auto& l) { return uint64_t{l.minStorageBufferOffsetAlignment}; }},
  };
  return table;
}

bool subgroup(const Facts& f, VkSubgroupFeatureFlags wanted) {
  return (f.subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) && (f.subgroup.supportedOperations & wanted) == wanted;
}

using Capabilities = std::map<std::string, std::function<bool(const Facts&)>>;

// SPIR-V's capabilities, and what Vulkan's specification ("SPIR-V Environment") asks of a device for each.
const Capabilities& capabilities() {
  static const Capabilities table = {
      {"Shader", [](const Facts&) { return true; }},
      {"GroupNonUniform", [](const Facts& f) { return subgroup(f, VK_SUBGROUP_FEATURE_BASIC_BIT); }},
      {"GroupNonUniformVote", [](const Facts& f) { return subgroup(f, VK_SUBGROUP_FEATURE_VOTE_BIT); }},
      {"GroupNonUniformArithmetic", [](const Facts& f) { return subgroup(f, VK_SUBGROUP_FEATURE_ARITHMETIC_BIT); }},
      {"GroupNonUniformBallot", [](const Facts& f) { return subgroup(f, VK_SUBGROUP_FEATURE_BALLOT_BIT); }},
      {"GroupNonUniformShuffle", [](const Facts& f) { return subgroup(f, VK_SUBGROUP_FEATURE_SHUFFLE_BIT); }},
      {"GroupNonUniformShuffleRelative", [](const Facts& f) { return subgroup(f, VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT); }},
      {"GroupNonUniformClustered", [](const Facts& f) { return subgroup(f, VK_SUBGROUP_FEATURE_CLUSTERED_BIT); }},
      {"GroupNonUniformQuad", [](const Facts& f) { return subgroup(f, VK_SUBGROUP_FEATURE_QUAD_BIT); }},
      {"Int16", [](const Facts& f) { return f.features.features.shaderInt16 != 0; }},
      {"Int64", [](const Facts& f) { return f.features.features.shaderInt64 != 0; }},
      {"Int8", [](const Facts& f) { return f.small.shaderInt8 != 0; }},
      {"Float16", [](const Facts& f) { return f.small.shaderFloat16 != 0; }},
      {"StorageBuffer16BitAccess", [](const Facts& f) { return f.storage16.storageBuffer16BitAccess != 0; }},
      {"StorageBuffer8BitAccess", [](const Facts& f) { return f.storage8.storageBuffer8BitAccess != 0; }},
      {"AtomicFloat32AddEXT", [](const Facts& f) { return f.atomics.shaderBufferFloat32AtomicAdd != 0; }},
      {"DotProduct", [](const Facts& f) { return f.dot_product.shaderIntegerDotProduct != 0; }},
      {"DotProductInput4x8BitPacked", [](const Facts& f) { return f.dot_product.shaderIntegerDotProduct != 0; }},
      {"SignedZeroInfNanPreserve", [](const Facts& f) { return f.floats.shaderSignedZeroInfNanPreserveFloat32 != 0; }},
  };
  return table;
}

std::string asked(const std::string& what) { return "the plan needs " + what; }

void require_subgroups(const Facts& facts, const PipelineLine& line) {
  if (!line.subgroup_size) return;
  const bool offered = facts.size_control.subgroupSizeControl && (facts.sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT);
  const uint32_t least = offered ? facts.sizes.minSubgroupSize : 0, most = offered ? facts.sizes.maxSubgroupSize : 0;
  const uint32_t size = line.subgroup_size;
  if (size < least || size > most || (size & (size - 1)))
    throw Refused(line.name + " asks for subgroups of " + std::to_string(size) + "; the device has " + std::to_string(least) + " to " + std::to_string(most) + " for a pipeline to ask for");
  uint64_t local = 1;
  for (size_t i = 0; i < 3 && i < line.spec.size(); ++i) local *= line.spec[i];
  if (local > uint64_t{facts.sizes.maxComputeWorkgroupSubgroups} * size)
    throw Refused(line.name + " has workgroups of " + std::to_string(local) + " and asks for subgroups of " + std::to_string(size) +
                  "; the device has " + std::to_string(facts.sizes.maxComputeWorkgroupSubgroups) + " of them at most");
}

}  // namespace

void Device::require_texture(const BufferLine& line) const {
  if (line.texels.empty()) return;
  const VkImageCreateInfo info = image_info(line);
  VkImageFormatProperties offered{};
  const VkResult result = vk.vkGetPhysicalDeviceImageFormatProperties(physical_, info.format, info.imageType, info.tiling, info.usage, 0, &offered);
  if (result == VK_ERROR_FORMAT_NOT_SUPPORTED) throw Refused(asked("textures of " + line.texels + ", which this device does not sample and store"));
  check(result, "vkGetPhysicalDeviceImageFormatProperties");
  const uint32_t sides[] = {info.extent.width, info.extent.height, info.extent.depth};
  const uint32_t most[] = {offered.maxExtent.width, offered.maxExtent.height, offered.maxExtent.depth};
  for (int axis = 0; axis < 3; ++axis)
    if (sides[axis] > most[axis])
      throw Refused(asked("a texture of " + std::to_string(sides[axis]) + " texels on an axis, and this device takes " + std::to_string(most[axis])));
}

void Device::require(const Plan& plan) const {
  const VkPhysicalDeviceLimits& l = facts.properties.limits;
  for (const auto& [name, value] : plan.needs) {
    const auto known = limits().find(name);
    if (known == limits().end()) throw Refused(asked(name + ", a limit that this player does not know"));
    const uint64_t here = known->second(l);
    const bool met = name == "minStorageBufferOffsetAlignment" ? here && value % here == 0 : value <= here;
    if (!met) throw Refused(asked(name + " " + std::to_string(value) + ", and this device has " + std::to_string(here)));
  }
  for (const std::string& name : plan.capabilities) {
    const auto known = capabilities().find(name);
    if (known == capabilities().end()) throw Refused(asked("the SPIR-V capability " + name + ", which this player does not know"));
    if (!known->second(facts)) throw Refused(asked("the SPIR-V capability " + name + ", which this device does not have"));
  }
  if (plan.buffer_bytes() > facts.heap_bytes())
    throw Refused(asked(std::to_string(plan.buffer_bytes()) + " bytes of buffers, and the largest heap of this device has " + std::to_string(facts.heap_bytes())));
  for (const BufferLine& line : plan.buffers) require_texture(line);
  const uint32_t sampled = std::min(l.maxPerStageDescriptorSampledImages, l.maxPerStageDescriptorSamplers);
  const std::pair<char, uint32_t> most[] = {{'b', l.maxPerStageDescriptorStorageBuffers}, {'s', sampled}, {'i', l.maxPerStageDescriptorStorageImages}};
  for (const PipelineLine& line : plan.pipelines) {
    for (const auto& [kind, allowed] : most)
      if (line.count(kind) > allowed) {
        const char* what = kind == 'b' ? " bindings" : kind == 's' ? " sampled textures" : " stored textures";
        throw Refused(asked(std::to_string(line.count(kind)) + what + ", and this device takes " + std::to_string(allowed)));
      }
    if (line.push_bytes > l.maxPushConstantsSize)
      throw Refused(asked(std::to_string(line.push_bytes) + " bytes of push constants, and this device takes " + std::to_string(l.maxPushConstantsSize)));
    require_subgroups(facts, line);
  }
  for (const auto* commands : {&plan.load, &plan.run})
    for (const Command& command : *commands) {
      if (command.kind != Command::Kind::Dispatch) continue;
      for (int axis = 0; axis < 3; ++axis)
        if (command.groups[axis] > l.maxComputeWorkGroupCount[axis])
          throw Refused(asked(std::to_string(command.groups[axis]) + " workgroups on an axis, and this device takes " + std::to_string(l.maxComputeWorkGroupCount[axis])));
      for (const Region& r : command.regions)
        if (plan.buffers[r.buffer].texels.empty() && (r.nbytes > l.maxStorageBufferRange || r.offset % l.minStorageBufferOffsetAlignment || r.nbytes % 4))
          throw Refused(asked("a binding of " + std::to_string(r.nbytes) + " bytes at " + std::to_string(r.offset) + "; this device takes whole words, " +
                              std::to_string(l.maxStorageBufferRange) + " bytes, at multiples of " + std::to_string(l.minStorageBufferOffsetAlignment)));
    }
}

std::string Device::info_json() const {
  const VkPhysicalDeviceProperties& p = facts.properties;
  const VkPhysicalDeviceLimits& l = p.limits;
  const char* types[] = {"OTHER", "INTEGRATED_GPU", "DISCRETE_GPU", "VIRTUAL_GPU", "CPU"};
  const auto three = [](const uint32_t* v) { return list({std::to_string(v[0]), std::to_string(v[1]), std::to_string(v[2])}); };
  const auto bits = [](uint32_t flags, const std::vector<std::pair<uint32_t, const char*>>& names) {
    std::vector<std::string> found;
    for (const auto& [bit, name] : names)
      if (flags & bit) found.push_back(quoted(name));
    return list(found);
  };
  const std::vector<std::pair<uint32_t, const char*>> stage = {{VK_SHADER_STAGE_COMPUTE_BIT, "VK_SHADER_STAGE_COMPUTE_BIT"}};
  std::string uuid;
  for (const uint8_t byte : p.pipelineCacheUUID) uuid += "0123456789abcdef"[byte >> 4], uuid += "0123456789abcdef"[byte & 15];
  Object base;
  base.whole("apiVersion", p.apiVersion).whole("driverVersion", p.driverVersion).whole("vendorID", p.vendorID).whole("deviceID", p.deviceID)
      .text("deviceType", std::string("VK_PHYSICAL_DEVICE_TYPE_") + types[p.deviceType <= 4 ? p.deviceType : 0])
      .text("deviceName", p.deviceName).text("pipelineCacheUUID", uuid)
      .raw("limits", Object().whole("maxStorageBufferRange", l.maxStorageBufferRange).whole("maxPushConstantsSize", l.maxPushConstantsSize)
                         .whole("maxPerStageDescriptorStorageBuffers", l.maxPerStageDescriptorStorageBuffers)
                         .whole("maxComputeSharedMemorySize", l.maxComputeSharedMemorySize).raw("maxComputeWorkGroupCount", three(l.maxComputeWorkGroupCount))
                         .whole("maxComputeWorkGroupInvocations", l.maxComputeWorkGroupInvocations).raw("maxComputeWorkGroupSize", three(l.maxComputeWorkGroupSize))
                         .whole("minStorageBufferOffsetAlignment", l.minStorageBufferOffsetAlignment)
                         .whole("maxImageDimension2D", l.maxImageDimension2D).whole("maxImageDimension3D", l.maxImageDimension3D).real("timestampPeriod", l.timestampPeriod).str());
  Object properties;
  properties.raw("VkPhysicalDeviceProperties", base.str());
  if (facts.has("VK_KHR_driver_properties"))
    properties.raw("VkPhysicalDeviceDriverProperties", Object().text("driverName", facts.driver.driverName).text("driverInfo", facts.driver.driverInfo)
                                                            .whole("driverID", facts.driver.driverID).str());
  properties.raw("VkPhysicalDeviceSubgroupProperties",
                 Object().whole("subgroupSize", facts.subgroup.subgroupSize).raw("supportedStages", bits(facts.subgroup.supportedStages, stage))
                     .raw("supportedOperations", bits(facts.subgroup.supportedOperations,
                                                      {{1, "VK_SUBGROUP_FEATURE_BASIC_BIT"}, {2, "VK_SUBGROUP_FEATURE_VOTE_BIT"}, {4, "VK_SUBGROUP_FEATURE_ARITHMETIC_BIT"},
                                                       {8, "VK_SUBGROUP_FEATURE_BALLOT_BIT"}, {16, "VK_SUBGROUP_FEATURE_SHUFFLE_BIT"}, {32, "VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT"},
                                                       {64, "VK_SUBGROUP_FEATURE_CLUSTERED_BIT"}, {128, "VK_SUBGROUP_FEATURE_QUAD_BIT"}})).str());
  properties.raw("VkPhysicalDeviceMaintenance3Properties", Object().whole("maxMemoryAllocationSize", facts.maintenance.maxMemoryAllocationSize).str());
  Object features;
  features.raw("VkPhysicalDevice16BitStorageFeatures", Object().truth("storageBuffer16BitAccess", facts.storage16.storageBuffer16BitAccess).str());
  if (facts.has("VK_KHR_8bit_storage")) features.raw("VkPhysicalDevice8BitStorageFeatures", Object().truth("storageBuffer8BitAccess", facts.storage8.storageBuffer8BitAccess).str());
  if (facts.has("VK_KHR_shader_float16_int8"))
    features.raw("VkPhysicalDeviceShaderFloat16Int8Features", Object().truth("shaderFloat16", facts.small.shaderFloat16).truth("shaderInt8", facts.small.shaderInt8).str());
  if (facts.has("VK_EXT_shader_atomic_float"))
    features.raw("VkPhysicalDeviceShaderAtomicFloatFeaturesEXT",
                 Object().truth("shaderBufferFloat32Atomics", facts.atomics.shaderBufferFloat32Atomics).truth("shaderBufferFloat32AtomicAdd", facts.atomics.shaderBufferFloat32AtomicAdd).str());
  if (facts.has("VK_EXT_subgroup_size_control")) {
    properties.raw("VkPhysicalDeviceSubgroupSizeControlProperties",
                   Object().whole("minSubgroupSize", facts.sizes.minSubgroupSize).whole("maxSubgroupSize", facts.sizes.maxSubgroupSize)
                       .whole("maxComputeWorkgroupSubgroups", facts.sizes.maxComputeWorkgroupSubgroups).raw("requiredSubgroupSizeStages", bits(facts.sizes.requiredSubgroupSizeStages, stage)).str());
    features.raw("VkPhysicalDeviceSubgroupSizeControlFeatures", Object().truth("subgroupSizeControl", facts.size_control.subgroupSizeControl).str());
  }
  Object extensions;
  for (const std::string& name : facts.extensions) extensions.whole(name, 1);
  std::vector<std::string> heaps;
  for (uint32_t i = 0; i < facts.memory.memoryHeapCount; ++i) {
    const bool local = facts.memory.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT;
    heaps.push_back(Object().whole("size", facts.memory.memoryHeaps[i].size).raw("flags", local ? "[\"VK_MEMORY_HEAP_DEVICE_LOCAL_BIT\"]" : "[]").str());
  }
  const std::string block = Object().raw("properties", properties.str()).raw("features", features.str()).raw("extensions", extensions.str()).raw("heaps", list(heaps)).str();
  return Object().raw("capabilities", Object().raw("device", block).str()).raw("profiles", Object().raw("player", Object().raw("capabilities", "[\"device\"]").str()).str()).str();
}

}  // namespace player
