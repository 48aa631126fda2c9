// Device facts as Python data in the layout of Vulkan profile files, and the same tables used to enable features.
#pragma once

#include "core.hpp"
#include "tables.hpp"

#include <map>
#include <set>

namespace vkconv {

// Extensions the physical device offers, with their versions.
std::map<std::string, uint32_t> device_extensions(VkPhysicalDevice physical);

// What decides which structures a physical device can be asked for.
struct Offer {
  uint32_t version;  // min(what the device offers, what the instance was made for)
  std::map<std::string, uint32_t> extensions;

  Offer(const Instance& instance, VkPhysicalDevice physical);
  bool chains() const { return version >= VK_API_VERSION_1_1; }  // a device of 1.0 has no call that takes a chain
  bool in_core(const Struct& row) const { return row.core_since != 0 && version >= row.core_since; }
  bool has(const Struct& row) const {
    return chains() && (in_core(row) || extensions.count(row.extension) != 0);
  }
};

// Structures chained to a head. They stay where they are as long as the chain.
class Chain {
 public:
  template <typename Head>
  explicit Chain(Head& head) : head_(reinterpret_cast<VkBaseOutStructure*>(&head)) {}
  void* add(const Struct& row);  // zeroed, with its sType

 private:
  VkBaseOutStructure* head_;
  std::vector<std::vector<uint64_t>> blocks_;  // 8-byte aligned
};

// {structure name: {field: offered}} of every feature structure this device can be asked about.
py::dict feature_facts(const Offer& offer, VkPhysicalDevice physical);

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
  Chain chain_{features_};
  std::vector<std::string> extensions_;
  std::vector<std::string> names_;
};

}  // namespace vkconv
