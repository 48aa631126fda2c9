// The property structures the bridge knows: how each is asked for, and how its fields are given.
#include "facts.hpp"
#include "names.hpp"
#include "newer_headers.hpp"

#include <cstdio>
#include <cstring>
#include <functional>

namespace vkconv {
namespace {

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

}  // namespace

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

}  // namespace vkconv
