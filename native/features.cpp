// Which features a device offers, and which it is created with: the same table serves both.
#include "facts.hpp"

#include <algorithm>
#include <iterator>

namespace vkconv {
namespace {

// Extensions without a feature structure that are worth having.
constexpr const char* kPlainExtensions[] = {
    "VK_EXT_external_memory_host",
    "VK_EXT_memory_budget",
    "VK_KHR_shader_non_semantic_info",
    "VK_KHR_portability_subset",  // must be enabled where it is offered
};
constexpr const char* kRequiredExtension = "VK_KHR_portability_subset";

VkBool32& value_of(const Feature& feature, void* base) {
  return *reinterpret_cast<VkBool32*>(static_cast<char*>(base) + feature.offset);
}

py::dict to_dict(const std::vector<Feature>& features, void* base) {
  py::dict values;
  for (const auto& feature : features) values[feature.name] = value_of(feature, base) == VK_TRUE;
  return values;
}

// The rows this device can be asked about, filled in.
struct Query {
  VkPhysicalDeviceFeatures2 head{};
  Chain chain{head};
  std::vector<std::pair<const FeatureStruct*, void*>> rows;

  Query(const Offer& offer, VkPhysicalDevice physical) {
    head.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    for (const auto& row : kFeatureStructs)
      if (offer.has(row)) rows.emplace_back(&row, chain.add(row));
    if (offer.chains())
      vkGetPhysicalDeviceFeatures2(physical, &head);
    else
      vkGetPhysicalDeviceFeatures(physical, &head.features);
  }
};

}  // namespace

void* Chain::add(const Struct& row) {
  auto* block = reinterpret_cast<VkBaseOutStructure*>(blocks_.emplace_back((row.size + 7) / 8, 0).data());
  block->sType = row.type;
  block->pNext = std::exchange(head_->pNext, block);
  return block;
}

py::dict feature_facts(const Offer& offer, VkPhysicalDevice physical) {
  Query query(offer, physical);
  py::dict features;
  features["VkPhysicalDeviceFeatures"] = to_dict(kBaseFeatures, &query.head.features);
  for (const auto& [row, block] : query.rows) features[row->name] = to_dict(row->features, block);
  return features;
}

FeatureSet::FeatureSet(const Instance& instance, VkPhysicalDevice physical, const std::set<std::string>& disabled) {
  std::set<std::string> known(std::begin(kPlainExtensions), std::end(kPlainExtensions));
  for (const auto& feature : kBaseFeatures) known.insert(feature.name);
  for (const auto& row : kFeatureStructs) {
    known.insert({row.name, row.extension});
    for (const auto& feature : row.features) known.insert(feature.name);
  }
  for (const auto& name : disabled) {
    if (known.count(name) == 0)
      throw py::value_error("disable: '" + name + "' is no feature, feature structure or extension that the bridge enables");
    if (name == kRequiredExtension) throw py::value_error("disable: '" + name + "' must be enabled where it is offered");
  }

  const Offer offer(instance, physical);
  Query query(offer, physical);
  features_.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;

  const auto wanted = [&](const std::vector<Feature>& features, void* offered) {
    std::vector<Feature> list;
    for (const auto& feature : features)
      if (feature.enable && value_of(feature, offered) == VK_TRUE && disabled.count(feature.name) == 0)
        list.push_back(feature);
    return list;
  };
  const auto enable = [&](const std::vector<Feature>& features, void* base) {
    for (const auto& feature : features) {
      value_of(feature, base) = VK_TRUE;
      names_.push_back(feature.name);
    }
  };
  const auto is_enabled = [&](const char* extension) {
    return std::find(extensions_.begin(), extensions_.end(), extension) != extensions_.end();
  };
  enable(wanted(kBaseFeatures, &query.head.features), &features_.features);
  for (const auto& [row, offered] : query.rows) {
    if (disabled.count(row->name) != 0 || disabled.count(row->extension) != 0) continue;
    const auto features = wanted(row->features, offered);
    if (features.empty() || !std::all_of(row->needs.begin(), row->needs.end(), is_enabled)) continue;
    enable(features, chain_.add(*row));
    if (!offer.in_core(*row)) extensions_.push_back(row->extension);
  }
  for (const char* name : kPlainExtensions)
    if (offer.extensions.count(name) != 0 && disabled.count(name) == 0) extensions_.push_back(name);
}

bool FeatureSet::has(const std::string& feature) const {
  return std::find(names_.begin(), names_.end(), feature) != names_.end();
}

}  // namespace vkconv
