#include "facts.hpp"
#include "vulkan_tables.hpp"

#include <algorithm>

namespace vkconv {
namespace {

py::dict property_facts(const Offer& offer, VkPhysicalDevice physical) {
  VkPhysicalDeviceProperties2 head{};
  head.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  Chain chain(head);
  std::vector<std::pair<const PropertyStruct*, void*>> rows;
  for (const auto& row : kPropertyStructs)
    if (offer.has(row)) rows.emplace_back(&row, chain.add(row));
  if (offer.chains())
    vkGetPhysicalDeviceProperties2(physical, &head);
  else
    vkGetPhysicalDeviceProperties(physical, &head.properties);
  py::dict all;
  all["VkPhysicalDeviceProperties"] = to_dict(head.properties);
  for (const auto& [row, block] : rows) all[row->name] = row->to_dict(block);
  return all;
}

template <typename T>
py::list to_dicts(const T* items, size_t count) {
  py::list list;
  for (size_t i = 0; i < count; ++i) list.append(to_dict(items[i]));
  return list;
}

py::list cooperative_matrices(const Instance& instance, VkPhysicalDevice physical) {
  constexpr auto kCall = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
  using Shape = VkCooperativeMatrixPropertiesKHR;
  using Get = VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*, Shape*);
  const auto get = reinterpret_cast<Get>(vkGetInstanceProcAddr(instance.handle, kCall));
  if (get == nullptr) return py::list();
  const auto shapes = enumerate<Shape>(kCall, [&](uint32_t* count, Shape* items) {
    for (uint32_t i = 0; items != nullptr && i < *count; ++i)
      items[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    return get(physical, count, items);
  });
  return to_dicts(shapes.data(), shapes.size());
}

py::dict memory_facts(VkPhysicalDevice physical) {
  VkPhysicalDeviceMemoryProperties memory;
  vkGetPhysicalDeviceMemoryProperties(physical, &memory);
  py::dict all;
  all["memoryHeaps"] = to_dicts(memory.memoryHeaps, memory.memoryHeapCount);
  all["memoryTypes"] = to_dicts(memory.memoryTypes, memory.memoryTypeCount);
  return all;
}

py::dict format_facts(VkPhysicalDevice physical) {
  py::dict all;
  for (const Format& item : kFormats) {
    VkFormatProperties properties{};
    vkGetPhysicalDeviceFormatProperties(physical, item.format, &properties);
    py::dict offered;
    offered["VkFormatProperties"] = to_dict(properties);
    all[item.vulkan_name] = offered;
  }
  return all;
}

py::list queue_family_facts(VkPhysicalDevice physical) {
  uint32_t count = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families.data());
  return to_dicts(families.data(), count);
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

Offer::Offer(const Instance& instance, VkPhysicalDevice physical) : extensions(device_extensions(physical)) {
  VkPhysicalDeviceProperties properties;
  vkGetPhysicalDeviceProperties(physical, &properties);
  version = std::min(properties.apiVersion, instance.api_version);
}

py::dict device_facts(const Instance& instance, VkPhysicalDevice physical) {
  const Offer offer(instance, physical);
  py::dict facts;
  facts["properties"] = property_facts(offer, physical);
  facts["features"] = feature_facts(offer, physical);
  py::dict versions;
  for (const auto& [name, version] : offer.extensions) versions[name.c_str()] = version;
  facts["extensions"] = versions;
  facts["queueFamilies"] = queue_family_facts(physical);
  facts["memory"] = memory_facts(physical);
  facts["formats"] = format_facts(physical);
  facts["cooperativeMatrices"] =
      offer.extensions.count("VK_KHR_cooperative_matrix") != 0 ? cooperative_matrices(instance, physical) : py::list();
  return facts;
}

}  // namespace vkconv
