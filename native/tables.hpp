// What the tables of Vulkan's structures and enumerants are made of. make_tables.py writes them at build, from vk.xml.
#pragma once

#include "errors.hpp"

#include <cstring>

namespace vkconv {

struct Enumerant {
  int64_t value;  // of flags: a single bit
  const char* name;
};
using Enumerants = std::vector<Enumerant>;

struct Struct {
  const char* name;
  VkStructureType type;
  size_t size;
  uint32_t core_since;    // 0: never became core
  const char* extension;  // offers it below that version; empty: none does
};

struct Feature {
  const char* name;
  size_t offset;
  bool enable;  // false: reported, never switched on
};

struct FeatureStruct : Struct {
  std::vector<const char*> needs;  // the extensions of this table that its own cannot be enabled without
  std::vector<Feature> features;
};

struct PropertyStruct : Struct {
  py::dict (*to_dict)(const void*);
};

extern const std::vector<Feature> kBaseFeatures;  // of VkPhysicalDeviceFeatures
extern const std::vector<FeatureStruct> kFeatureStructs;
extern const std::vector<PropertyStruct> kPropertyStructs;

// Null for a value newer than the tables.
inline const char* find_name(const Enumerants& names, int64_t value) {
  for (const Enumerant& item : names)
    if (item.value == value) return item.name;
  return nullptr;
}

// The enumerant's name, or its number in decimal.
inline std::string enum_name(const Enumerants& names, int64_t value) {
  const char* name = find_name(names, value);
  return name != nullptr ? name : std::to_string(value);
}

inline py::list flag_names(const Enumerants& names, uint64_t bits) {
  py::list list;
  for (const Enumerant& item : names)
    if ((bits & static_cast<uint64_t>(item.value)) != 0) list.append(item.name);
  return list;
}

template <size_t Count>
std::string hex(const uint8_t (&bytes)[Count]) {
  constexpr auto kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
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

}  // namespace vkconv
