// Device facts as Python data in the layout of Vulkan profile files, and the same tables used to enable features.
#pragma once

#include "core.hpp"

#include <map>
#include <set>

namespace vkconv {

// Extensions the physical device offers, with their versions.
std::map<std::string, uint32_t> device_extensions(VkPhysicalDevice physical);

// min(what the device offers, what the instance was made for): the version whose core structures may be used.
uint32_t usable_version(const Instance& instance, VkPhysicalDevice physical);

// {structure name: {field: value}} of every property structure that a device of this version and these extensions has.
py::dict property_facts(uint32_t version, const std::map<std::string, uint32_t>& extensions, VkPhysicalDevice physical);

// {structure name: {field: offered}} of every feature structure this device can be asked about.
py::dict feature_facts(const Instance& instance, VkPhysicalDevice physical);

// Everything known about a physical device, see _bridge.pyi.
py::dict device_facts(const Instance& instance, VkPhysicalDevice physical);

// The features and extensions that a device is created with; `chain()` stays valid as long as the object.
class FeatureSet {
 public:
  FeatureSet(const Instance& instance, VkPhysicalDevice physical, const std::set<std::string>& disabled);
  FeatureSet(const FeatureSet&) = delete;
  FeatureSet& operator=(const FeatureSet&) = delete;

  const void* chain() const { return &features_; }
  const std::vector<std::string>& extensions() const { return extensions_; }
  const std::vector<std::string>& features() const { return names_; }
  bool has(const std::string& feature) const;

 private:
  VkPhysicalDeviceFeatures2 features_{};
  std::vector<std::vector<uint64_t>> blocks_;  // storage of the chained structures, 8-byte aligned
  std::vector<std::string> extensions_;
  std::vector<std::string> names_;
};

}  // namespace vkconv
