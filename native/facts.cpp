#include "facts.hpp"
#include "names.hpp"
#include "newer_headers.hpp"

#include <algorithm>

namespace vkconv {
namespace {

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
    d["MSize"] = p.MSize;
    d["NSize"] = p.NSize;
    d["KSize"] = p.KSize;
    d["AType"] = enum_name(kComponentTypes, static_cast<uint64_t>(p.AType));
    d["BType"] = enum_name(kComponentTypes, static_cast<uint64_t>(p.BType));
    d["CType"] = enum_name(kComponentTypes, static_cast<uint64_t>(p.CType));
    d["ResultType"] = enum_name(kComponentTypes, static_cast<uint64_t>(p.ResultType));
    d["saturatingAccumulation"] = p.saturatingAccumulation == VK_TRUE;
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
    d["queueCount"] = p.queueCount;
    d["timestampValidBits"] = p.timestampValidBits;
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
