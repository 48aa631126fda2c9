// Memory of the host that the device uses where it lies, by VK_EXT_external_memory_host.
#include "memory.hpp"
#include "upload.hpp"

#include <algorithm>

namespace vkconv {
namespace {

constexpr VkExternalMemoryHandleTypeFlagBits kPages = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
constexpr VkBufferUsageFlags kUsage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT;

// Keeps a Python object, and lets it go under the GIL, from whatever thread.
std::shared_ptr<void> kept(const py::object& object) {
  return {object.inc_ref().ptr(), [](void* pointer) {
            if (!Py_IsInitialized()) return;
            const py::gil_scoped_acquire locked;
            Py_DECREF(static_cast<PyObject*>(pointer));
          }};
}

}  // namespace

void allow_imports(Core& core, const std::vector<std::string>& extensions) {
  if (std::find(extensions.begin(), extensions.end(), "VK_EXT_external_memory_host") == extensions.end()) return;
  VkPhysicalDeviceExternalBufferInfo info{};
  info.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO;
  info.usage = kUsage;
  info.handleType = kPages;
  VkExternalBufferProperties buffers{};
  buffers.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES;
  vkGetPhysicalDeviceExternalBufferProperties(core.physical, &info, &buffers);
  const VkExternalMemoryFeatureFlags can = buffers.externalMemoryProperties.externalMemoryFeatures;
  if ((can & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT) == 0 || (can & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT) != 0)
    return;
  VkPhysicalDeviceExternalMemoryHostPropertiesEXT host{};
  host.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT;
  VkPhysicalDeviceProperties2 query{};
  query.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  query.pNext = &host;
  vkGetPhysicalDeviceProperties2(core.physical, &query);
  core.import_alignment = host.minImportedHostPointerAlignment;
  core.host_pointer_properties = reinterpret_cast<PFN_vkGetMemoryHostPointerPropertiesEXT>(
      vkGetDeviceProcAddr(core.handle, "vkGetMemoryHostPointerPropertiesEXT"));
}

std::optional<std::pair<std::shared_ptr<BufferCore>, uint64_t>> import_pages(const CorePtr& core, const py::array& data) {
  constexpr auto call = "Device.imported";
  const auto nbytes = static_cast<uint64_t>(data.nbytes());
  const auto address = reinterpret_cast<uintptr_t>(bytes_of(call, data, nbytes));
  VKCONV_REQUIRE(nbytes > 0, call << ": the array has no bytes");
  if (core->host_pointer_properties == nullptr || core->import_alignment == 0) return std::nullopt;
  const uint64_t first = address % core->import_alignment;
  // Whole pages: those that the array begins and ends in are there.
  const uint64_t size = (first + nbytes + core->import_alignment - 1) / core->import_alignment * core->import_alignment;
  if (size > core->max_allocation_bytes) return std::nullopt;
  void* pages = reinterpret_cast<void*>(address - first);

  auto made = std::make_shared<BufferCore>();
  made->core = core;
  made->nbytes = made->padded_bytes = (first + nbytes + 3) / 4 * 4;  // the page goes on, and kernels read whole words
  made->memory = decltype(made->memory)(core);
  made->buffer = decltype(made->buffer)(core);
  VkExternalMemoryBufferCreateInfo external{};
  external.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO;
  external.handleTypes = kPages;
  VkBufferCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.pNext = &external;
  info.size = made->padded_bytes;
  info.usage = kUsage;
  info.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  check(vkCreateBuffer(core->handle, &info, nullptr, made->buffer.out()), "vkCreateBuffer");
  VkMemoryRequirements need;
  vkGetBufferMemoryRequirements(core->handle, made->buffer.get(), &need);
  VkMemoryHostPointerPropertiesEXT allowed{};
  allowed.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT;
  if (core->host_pointer_properties(core->handle, kPages, pages, &allowed) != VK_SUCCESS || need.size > size)
    return std::nullopt;

  VkImportMemoryHostPointerInfoEXT import{};
  import.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT;
  import.handleType = kPages;
  import.pHostPointer = pages;
  VkMemoryAllocateInfo allocation{};
  allocation.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  allocation.pNext = &import;
  allocation.allocationSize = size;
  constexpr VkMemoryPropertyFlags kWanted = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  for (uint32_t type = 0; type < core->memory.memoryTypeCount; ++type) {
    made->memory_flags = core->memory.memoryTypes[type].propertyFlags;
    if (((need.memoryTypeBits & allowed.memoryTypeBits) >> type & 1u) == 0 || (made->memory_flags & kWanted) != kWanted ||
        (made->memory_flags & kSpecialMemory) != 0)
      continue;
    allocation.memoryTypeIndex = type;
    if (vkAllocateMemory(core->handle, &allocation, nullptr, made->memory.out()) != VK_SUCCESS) continue;
    check(vkBindBufferMemory(core->handle, made->buffer.get(), made->memory.get(), 0), "vkBindBufferMemory");
    made->imported = kept(data);
    return std::pair(std::move(made), first);
  }
  return std::nullopt;
}

}  // namespace vkconv
