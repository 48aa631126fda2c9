#include "facts.hpp"
#include "newer_headers.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>

namespace vkconv {
namespace {

struct Name {
  uint64_t value;
  const char* name;
};

#define N(value) {static_cast<uint64_t>(value), #value}

constexpr Name kDeviceTypes[] = {N(VK_PHYSICAL_DEVICE_TYPE_OTHER), N(VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU),
                                 N(VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU), N(VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU),
                                 N(VK_PHYSICAL_DEVICE_TYPE_CPU)};
constexpr Name kQueueFlags[] = {N(VK_QUEUE_GRAPHICS_BIT),       N(VK_QUEUE_COMPUTE_BIT),
                                N(VK_QUEUE_TRANSFER_BIT),       N(VK_QUEUE_SPARSE_BINDING_BIT),
                                N(VK_QUEUE_PROTECTED_BIT),      {0x20, "VK_QUEUE_VIDEO_DECODE_BIT_KHR"},
                                {0x40, "VK_QUEUE_VIDEO_ENCODE_BIT_KHR"}, {0x100, "VK_QUEUE_OPTICAL_FLOW_BIT_NV"}};
constexpr Name kMemoryFlags[] = {N(VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT),
                                 N(VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT),
                                 N(VK_MEMORY_PROPERTY_HOST_COHERENT_BIT),
                                 N(VK_MEMORY_PROPERTY_HOST_CACHED_BIT),
                                 N(VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT),
                                 N(VK_MEMORY_PROPERTY_PROTECTED_BIT),
                                 N(VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD),
                                 N(VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD),
                                 N(VK_MEMORY_PROPERTY_RDMA_CAPABLE_BIT_NV)};
constexpr Name kHeapFlags[] = {N(VK_MEMORY_HEAP_DEVICE_LOCAL_BIT), N(VK_MEMORY_HEAP_MULTI_INSTANCE_BIT)};
constexpr Name kStages[] = {N(VK_SHADER_STAGE_VERTEX_BIT),
                            N(VK_SHADER_STAGE_TESSELLATION_CONTROL_BIT),
                            N(VK_SHADER_STAGE_TESSELLATION_EVALUATION_BIT),
                            N(VK_SHADER_STAGE_GEOMETRY_BIT),
                            N(VK_SHADER_STAGE_FRAGMENT_BIT),
                            N(VK_SHADER_STAGE_COMPUTE_BIT),
                            {0x40, "VK_SHADER_STAGE_TASK_BIT_EXT"},
                            {0x80, "VK_SHADER_STAGE_MESH_BIT_EXT"},
                            N(VK_SHADER_STAGE_RAYGEN_BIT_KHR),
                            N(VK_SHADER_STAGE_ANY_HIT_BIT_KHR),
                            N(VK_SHADER_STAGE_CLOSEST_HIT_BIT_KHR),
                            N(VK_SHADER_STAGE_MISS_BIT_KHR),
                            N(VK_SHADER_STAGE_INTERSECTION_BIT_KHR),
                            N(VK_SHADER_STAGE_CALLABLE_BIT_KHR)};
constexpr Name kSubgroupOperations[] = {
    N(VK_SUBGROUP_FEATURE_BASIC_BIT),     N(VK_SUBGROUP_FEATURE_VOTE_BIT),
    N(VK_SUBGROUP_FEATURE_ARITHMETIC_BIT), N(VK_SUBGROUP_FEATURE_BALLOT_BIT),
    N(VK_SUBGROUP_FEATURE_SHUFFLE_BIT),   N(VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT),
    N(VK_SUBGROUP_FEATURE_CLUSTERED_BIT), N(VK_SUBGROUP_FEATURE_QUAD_BIT),
    N(VK_SUBGROUP_FEATURE_PARTITIONED_BIT_NV), {0x200, "VK_SUBGROUP_FEATURE_ROTATE_BIT"},
    {0x400, "VK_SUBGROUP_FEATURE_ROTATE_CLUSTERED_BIT"}};
constexpr Name kIndependence[] = {N(VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_32_BIT_ONLY),
                                  N(VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_ALL),
                                  N(VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE)};
// By number, because older headers lack the later names.
constexpr Name kDriverIds[] = {{1, "VK_DRIVER_ID_AMD_PROPRIETARY"},
                               {2, "VK_DRIVER_ID_AMD_OPEN_SOURCE"},
                               {3, "VK_DRIVER_ID_MESA_RADV"},
                               {4, "VK_DRIVER_ID_NVIDIA_PROPRIETARY"},
                               {5, "VK_DRIVER_ID_INTEL_PROPRIETARY_WINDOWS"},
                               {6, "VK_DRIVER_ID_INTEL_OPEN_SOURCE_MESA"},
                               {7, "VK_DRIVER_ID_IMAGINATION_PROPRIETARY"},
                               {8, "VK_DRIVER_ID_QUALCOMM_PROPRIETARY"},
                               {9, "VK_DRIVER_ID_ARM_PROPRIETARY"},
                               {10, "VK_DRIVER_ID_GOOGLE_SWIFTSHADER"},
                               {11, "VK_DRIVER_ID_GGP_PROPRIETARY"},
                               {12, "VK_DRIVER_ID_BROADCOM_PROPRIETARY"},
                               {13, "VK_DRIVER_ID_MESA_LLVMPIPE"},
                               {14, "VK_DRIVER_ID_MOLTENVK"},
                               {15, "VK_DRIVER_ID_COREAVI_PROPRIETARY"},
                               {16, "VK_DRIVER_ID_JUICE_PROPRIETARY"},
                               {17, "VK_DRIVER_ID_VERISILICON_PROPRIETARY"},
                               {18, "VK_DRIVER_ID_MESA_TURNIP"},
                               {19, "VK_DRIVER_ID_MESA_V3DV"},
                               {20, "VK_DRIVER_ID_MESA_PANVK"},
                               {21, "VK_DRIVER_ID_SAMSUNG_PROPRIETARY"},
                               {22, "VK_DRIVER_ID_MESA_VENUS"},
                               {23, "VK_DRIVER_ID_MESA_DOZEN"},
                               {24, "VK_DRIVER_ID_MESA_NVK"},
                               {25, "VK_DRIVER_ID_IMAGINATION_OPEN_SOURCE_MESA"},
                               {26, "VK_DRIVER_ID_MESA_HONEYKRISP"}};
constexpr Name kComponentTypes[] = {{0, "VK_COMPONENT_TYPE_FLOAT16_KHR"},  {1, "VK_COMPONENT_TYPE_FLOAT32_KHR"},
                                    {2, "VK_COMPONENT_TYPE_FLOAT64_KHR"},  {3, "VK_COMPONENT_TYPE_SINT8_KHR"},
                                    {4, "VK_COMPONENT_TYPE_SINT16_KHR"},   {5, "VK_COMPONENT_TYPE_SINT32_KHR"},
                                    {6, "VK_COMPONENT_TYPE_SINT64_KHR"},   {7, "VK_COMPONENT_TYPE_UINT8_KHR"},
                                    {8, "VK_COMPONENT_TYPE_UINT16_KHR"},   {9, "VK_COMPONENT_TYPE_UINT32_KHR"},
                                    {10, "VK_COMPONENT_TYPE_UINT64_KHR"},  {1000141000, "VK_COMPONENT_TYPE_BFLOAT16_KHR"},
                                    {1000491002, "VK_COMPONENT_TYPE_FLOAT8_E4M3_EXT"},
                                    {1000491003, "VK_COMPONENT_TYPE_FLOAT8_E5M2_EXT"}};
constexpr Name kScopes[] = {{1, "VK_SCOPE_DEVICE_KHR"},
                            {2, "VK_SCOPE_WORKGROUP_KHR"},
                            {3, "VK_SCOPE_SUBGROUP_KHR"},
                            {5, "VK_SCOPE_QUEUE_FAMILY_KHR"}};

// The enumerant's name, or its number in decimal for one newer than these tables.
template <size_t Count>
std::string enum_name(const Name (&names)[Count], uint64_t value) {
  for (const Name& item : names)
    if (item.value == value) return item.name;
  return std::to_string(value);
}

template <size_t Count>
py::list flag_names(const Name (&names)[Count], uint64_t bits) {
  py::list list;
  for (const Name& item : names)
    if ((bits & item.value) != 0) list.append(item.name);
  return list;
}

template <size_t Count>
std::string hex(const uint8_t (&bytes)[Count]) {
  std::string text;
  char digits[3];
  for (const uint8_t byte : bytes) {
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

// A driver's string need not be UTF-8.
template <size_t Count>
py::object text(const char (&bytes)[Count]) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(bytes, static_cast<py::ssize_t>(strnlen(bytes, Count)), "replace"));
}

template <typename T, size_t Count>
py::list numbers(const T (&values)[Count]) {
  py::list list;
  for (const T value : values) list.append(value);
  return list;
}

py::dict limits_dict(const VkPhysicalDeviceLimits& limits) {
  py::dict d;
#define L(field) d[#field] = limits.field
  L(maxUniformBufferRange);
  L(maxStorageBufferRange);
  L(maxPushConstantsSize);
  L(maxMemoryAllocationCount);
  L(maxSamplerAllocationCount);
  L(maxTexelBufferElements);
  L(bufferImageGranularity);
  L(sparseAddressSpaceSize);
  L(maxBoundDescriptorSets);
  L(maxPerStageDescriptorUniformBuffers);
  L(maxPerStageDescriptorStorageBuffers);
  L(maxPerStageDescriptorSampledImages);
  L(maxPerStageDescriptorStorageImages);
  L(maxPerStageResources);
  L(maxDescriptorSetUniformBuffers);
  L(maxDescriptorSetUniformBuffersDynamic);
  L(maxDescriptorSetStorageBuffers);
  L(maxDescriptorSetStorageBuffersDynamic);
  L(maxDescriptorSetSampledImages);
  L(maxDescriptorSetStorageImages);
  L(maxImageDimension1D);
  L(maxImageDimension2D);
  L(maxImageDimension3D);
  L(maxImageArrayLayers);
  L(maxComputeSharedMemorySize);
  L(maxComputeWorkGroupInvocations);
  L(maxDrawIndirectCount);
  L(minMemoryMapAlignment);
  L(minTexelBufferOffsetAlignment);
  L(minUniformBufferOffsetAlignment);
  L(minStorageBufferOffsetAlignment);
  L(discreteQueuePriorities);
  L(timestampPeriod);
  L(optimalBufferCopyOffsetAlignment);
  L(optimalBufferCopyRowPitchAlignment);
  L(nonCoherentAtomSize);
#undef L
  d["timestampComputeAndGraphics"] = limits.timestampComputeAndGraphics == VK_TRUE;
  d["maxComputeWorkGroupCount"] = numbers(limits.maxComputeWorkGroupCount);
  d["maxComputeWorkGroupSize"] = numbers(limits.maxComputeWorkGroupSize);
  return d;
}

py::dict base_properties(const VkPhysicalDeviceProperties& p) {
  py::dict d;
  d["apiVersion"] = p.apiVersion;
  d["driverVersion"] = p.driverVersion;
  d["vendorID"] = p.vendorID;
  d["deviceID"] = p.deviceID;
  d["deviceType"] = enum_name(kDeviceTypes, p.deviceType);
  d["deviceName"] = text(p.deviceName);
  d["pipelineCacheUUID"] = hex(p.pipelineCacheUUID);
  d["limits"] = limits_dict(p.limits);
  return d;
}

// Collects property structures: ask() chains one and keeps how to print it; fill() calls the driver once.
class PropertyQuery {
 public:
  PropertyQuery(uint32_t version, const std::map<std::string, uint32_t>& extensions)
      : version_(version), extensions_(extensions) {}

  // `core_since` 0: never core; `extension` null: core only.
  template <typename T, typename Print>
  void ask(const char* name, VkStructureType type, uint32_t core_since, const char* extension, Print print) {
    const bool core = core_since != 0 && version_ >= core_since;
    if (!core && (extension == nullptr || extensions_.count(extension) == 0)) return;
    auto block = std::make_shared<T>();
    *block = T{};
    block->sType = type;
    block->pNext = head_.pNext;
    head_.pNext = block.get();
    printers_.emplace_back(name, [block, print] {
      py::dict d;
      print(*block, d);
      return d;
    });
  }

  py::dict fill(VkPhysicalDevice physical) {
    head_.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    if (version_ < VK_API_VERSION_1_1)
      vkGetPhysicalDeviceProperties(physical, &head_.properties);
    else
      vkGetPhysicalDeviceProperties2(physical, &head_);
    py::dict all;
    all["VkPhysicalDeviceProperties"] = base_properties(head_.properties);
    if (version_ >= VK_API_VERSION_1_1)
      for (const auto& [name, print] : printers_) all[name] = print();
    return all;
  }

 private:
  uint32_t version_;
  const std::map<std::string, uint32_t>& extensions_;
  VkPhysicalDeviceProperties2 head_{};
  std::vector<std::pair<const char*, std::function<py::dict()>>> printers_;
};

#define P(field) d[#field] = p.field
#define B(field) d[#field] = p.field == VK_TRUE

py::dict property_facts(uint32_t version, const std::map<std::string, uint32_t>& extensions, VkPhysicalDevice physical) {
  PropertyQuery query(version, extensions);
  query.ask<VkPhysicalDeviceIDProperties>(
      "VkPhysicalDeviceIDProperties", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES, VK_API_VERSION_1_1, nullptr,
      [](const auto& p, py::dict& d) {
        d["deviceUUID"] = hex(p.deviceUUID);
        d["driverUUID"] = hex(p.driverUUID);
      });
  query.ask<VkPhysicalDeviceSubgroupProperties>(
      "VkPhysicalDeviceSubgroupProperties", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES, VK_API_VERSION_1_1,
      nullptr, [](const auto& p, py::dict& d) {
        P(subgroupSize);
        d["supportedStages"] = flag_names(kStages, p.supportedStages);
        d["supportedOperations"] = flag_names(kSubgroupOperations, p.supportedOperations);
        B(quadOperationsInAllStages);
      });
  query.ask<VkPhysicalDeviceMaintenance3Properties>(
      "VkPhysicalDeviceMaintenance3Properties", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES,
      VK_API_VERSION_1_1, nullptr, [](const auto& p, py::dict& d) {
        P(maxPerSetDescriptors);
        P(maxMemoryAllocationSize);
      });
  query.ask<VkPhysicalDeviceDriverProperties>(
      "VkPhysicalDeviceDriverProperties", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES, VK_API_VERSION_1_2,
      "VK_KHR_driver_properties", [](const auto& p, py::dict& d) {
        d["driverID"] = enum_name(kDriverIds, static_cast<uint64_t>(p.driverID));
        d["driverName"] = text(p.driverName);
        d["driverInfo"] = text(p.driverInfo);
        const auto& v = p.conformanceVersion;
        py::dict version;
        version["major"] = v.major;
        version["minor"] = v.minor;
        version["subminor"] = v.subminor;
        version["patch"] = v.patch;
        d["conformanceVersion"] = version;
      });
  query.ask<VkPhysicalDeviceFloatControlsProperties>(
      "VkPhysicalDeviceFloatControlsProperties", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES,
      VK_API_VERSION_1_2, "VK_KHR_shader_float_controls", [](const auto& p, py::dict& d) {
        d["denormBehaviorIndependence"] = enum_name(kIndependence, p.denormBehaviorIndependence);
        d["roundingModeIndependence"] = enum_name(kIndependence, p.roundingModeIndependence);
        B(shaderSignedZeroInfNanPreserveFloat16);
        B(shaderSignedZeroInfNanPreserveFloat32);
        B(shaderSignedZeroInfNanPreserveFloat64);
        B(shaderDenormPreserveFloat16);
        B(shaderDenormPreserveFloat32);
        B(shaderDenormPreserveFloat64);
        B(shaderDenormFlushToZeroFloat16);
        B(shaderDenormFlushToZeroFloat32);
        B(shaderDenormFlushToZeroFloat64);
        B(shaderRoundingModeRTEFloat16);
        B(shaderRoundingModeRTEFloat32);
        B(shaderRoundingModeRTEFloat64);
        B(shaderRoundingModeRTZFloat16);
        B(shaderRoundingModeRTZFloat32);
        B(shaderRoundingModeRTZFloat64);
      });
  query.ask<VkPhysicalDeviceSubgroupSizeControlProperties>(
      "VkPhysicalDeviceSubgroupSizeControlProperties",
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES, VK_API_VERSION_1_3,
      "VK_EXT_subgroup_size_control", [](const auto& p, py::dict& d) {
        P(minSubgroupSize);
        P(maxSubgroupSize);
        P(maxComputeWorkgroupSubgroups);
        d["requiredSubgroupSizeStages"] = flag_names(kStages, p.requiredSubgroupSizeStages);
      });
  query.ask<VkPhysicalDeviceMaintenance4Properties>(
      "VkPhysicalDeviceMaintenance4Properties", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES,
      VK_API_VERSION_1_3, "VK_KHR_maintenance4", [](const auto& p, py::dict& d) { P(maxBufferSize); });
  query.ask<VkPhysicalDeviceShaderIntegerDotProductProperties>(
      "VkPhysicalDeviceShaderIntegerDotProductProperties",
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES, VK_API_VERSION_1_3,
      "VK_KHR_shader_integer_dot_product", [](const auto& p, py::dict& d) {
        B(integerDotProduct8BitUnsignedAccelerated);
        B(integerDotProduct8BitSignedAccelerated);
        B(integerDotProduct8BitMixedSignednessAccelerated);
        B(integerDotProduct4x8BitPackedUnsignedAccelerated);
        B(integerDotProduct4x8BitPackedSignedAccelerated);
        B(integerDotProduct4x8BitPackedMixedSignednessAccelerated);
      });
  query.ask<CooperativeMatrixDeviceProperties>(
      "VkPhysicalDeviceCooperativeMatrixPropertiesKHR", kCooperativeMatrixPropertiesType, 0, kCooperativeMatrixExtension,
      [](const auto& p, py::dict& d) {
        d["cooperativeMatrixSupportedStages"] = flag_names(kStages, p.cooperativeMatrixSupportedStages);
      });
  query.ask<VkPhysicalDeviceExternalMemoryHostPropertiesEXT>(
      "VkPhysicalDeviceExternalMemoryHostPropertiesEXT",
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT, 0, "VK_EXT_external_memory_host",
      [](const auto& p, py::dict& d) { P(minImportedHostPointerAlignment); });
  query.ask<VkPhysicalDevicePCIBusInfoPropertiesEXT>(
      "VkPhysicalDevicePCIBusInfoPropertiesEXT", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT, 0,
      "VK_EXT_pci_bus_info", [](const auto& p, py::dict& d) {
        P(pciDomain);
        P(pciBus);
        P(pciDevice);
        P(pciFunction);
      });
  query.ask<VkPhysicalDeviceShaderCorePropertiesAMD>(
      "VkPhysicalDeviceShaderCorePropertiesAMD", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD, 0,
      "VK_AMD_shader_core_properties", [](const auto& p, py::dict& d) {
        P(shaderEngineCount);
        P(shaderArraysPerEngineCount);
        P(computeUnitsPerShaderArray);
        P(simdPerComputeUnit);
        P(wavefrontsPerSimd);
        P(wavefrontSize);
        P(sgprsPerSimd);
        P(minSgprAllocation);
        P(maxSgprAllocation);
        P(sgprAllocationGranularity);
        P(vgprsPerSimd);
        P(minVgprAllocation);
        P(maxVgprAllocation);
        P(vgprAllocationGranularity);
      });
  query.ask<VkPhysicalDeviceShaderCoreProperties2AMD>(
      "VkPhysicalDeviceShaderCoreProperties2AMD", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_2_AMD, 0,
      "VK_AMD_shader_core_properties2", [](const auto& p, py::dict& d) { P(activeComputeUnitCount); });
  query.ask<VkPhysicalDeviceShaderSMBuiltinsPropertiesNV>(
      "VkPhysicalDeviceShaderSMBuiltinsPropertiesNV",
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV, 0, "VK_NV_shader_sm_builtins",
      [](const auto& p, py::dict& d) {
        P(shaderSMCount);
        P(shaderWarpsPerSM);
      });
  query.ask<VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM>(
      "VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM",
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM, 0, "VK_ARM_shader_core_builtins",
      [](const auto& p, py::dict& d) {
        P(shaderCoreMask);
        P(shaderCoreCount);
        P(shaderWarpsPerCore);
      });
  return query.fill(physical);
}

py::list cooperative_matrices(const Instance& instance, VkPhysicalDevice physical) {
  py::list list;
  const auto get = reinterpret_cast<GetCooperativeMatrixShapes>(
      vkGetInstanceProcAddr(instance.handle, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
  if (get == nullptr) return list;
  const auto shapes = enumerate<CooperativeMatrixShape>(
      "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", [&](uint32_t* count, CooperativeMatrixShape* items) {
        for (uint32_t i = 0; items != nullptr && i < *count; ++i) items[i].sType = kCooperativeMatrixShapeType;
        return get(physical, count, items);
      });
  for (const auto& p : shapes) {
    py::dict d;
    P(MSize);
    P(NSize);
    P(KSize);
    d["AType"] = enum_name(kComponentTypes, static_cast<uint64_t>(p.AType));
    d["BType"] = enum_name(kComponentTypes, static_cast<uint64_t>(p.BType));
    d["CType"] = enum_name(kComponentTypes, static_cast<uint64_t>(p.CType));
    d["ResultType"] = enum_name(kComponentTypes, static_cast<uint64_t>(p.ResultType));
    B(saturatingAccumulation);
    d["scope"] = enum_name(kScopes, static_cast<uint64_t>(p.scope));
    list.append(d);
  }
  return list;
}

py::dict memory_facts(VkPhysicalDevice physical) {
  VkPhysicalDeviceMemoryProperties memory;
  vkGetPhysicalDeviceMemoryProperties(physical, &memory);
  py::list heaps;
  for (uint32_t i = 0; i < memory.memoryHeapCount; ++i) {
    py::dict d;
    d["size"] = memory.memoryHeaps[i].size;
    d["flags"] = flag_names(kHeapFlags, memory.memoryHeaps[i].flags);
    heaps.append(d);
  }
  py::list types;
  for (uint32_t i = 0; i < memory.memoryTypeCount; ++i) {
    py::dict d;
    d["propertyFlags"] = flag_names(kMemoryFlags, memory.memoryTypes[i].propertyFlags);
    d["heapIndex"] = memory.memoryTypes[i].heapIndex;
    types.append(d);
  }
  py::dict all;
  all["memoryHeaps"] = heaps;
  all["memoryTypes"] = types;
  return all;
}

py::list queue_family_facts(VkPhysicalDevice physical) {
  uint32_t count = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families.data());
  py::list list;
  for (const auto& p : families) {
    py::dict d;
    d["queueFlags"] = flag_names(kQueueFlags, p.queueFlags);
    P(queueCount);
    P(timestampValidBits);
    list.append(d);
  }
  return list;
}

}  // namespace

std::map<std::string, uint32_t> device_extensions(VkPhysicalDevice physical) {
  std::map<std::string, uint32_t> extensions;
  for (const auto& item : enumerate<VkExtensionProperties>(
           "vkEnumerateDeviceExtensionProperties", [&](uint32_t* count, VkExtensionProperties* items) {
             return vkEnumerateDeviceExtensionProperties(physical, nullptr, count, items);
           }))
    extensions[item.extensionName] = item.specVersion;
  return extensions;
}

uint32_t usable_version(const Instance& instance, VkPhysicalDevice physical) {
  VkPhysicalDeviceProperties properties;
  vkGetPhysicalDeviceProperties(physical, &properties);
  return std::min(properties.apiVersion, instance.api_version);
}

py::dict device_facts(const Instance& instance, VkPhysicalDevice physical) {
  const auto extensions = device_extensions(physical);
  py::dict facts;
  facts["properties"] = property_facts(usable_version(instance, physical), extensions, physical);
  facts["features"] = feature_facts(instance, physical);
  py::dict versions;
  for (const auto& [name, version] : extensions) versions[name.c_str()] = version;
  facts["extensions"] = versions;
  facts["queueFamilies"] = queue_family_facts(physical);
  facts["memory"] = memory_facts(physical);
  facts["cooperativeMatrices"] =
      extensions.count(kCooperativeMatrixExtension) != 0 ? cooperative_matrices(instance, physical) : py::list();
  return facts;
}

}  // namespace vkconv
