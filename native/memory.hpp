// Memory for buffers and images.
#pragma once

#include "device.hpp"

namespace vkconv {

// Types that a plain allocation must not use: they need a feature or a protected queue.
constexpr VkMemoryPropertyFlags kSpecialMemory =
    VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT | VK_MEMORY_PROPERTY_PROTECTED_BIT |
    VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD | VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD;

struct MemoryWish {
  VkMemoryPropertyFlags required;
  std::vector<VkMemoryPropertyFlags> preferred;  // the most important one first
  VkMemoryPropertyFlags unwanted;                // less important than all of them
};

// What a kind of memory of Device.buffer wishes.
MemoryWish memory_wish(const std::string& kind);

// Tries each fitting type in order and returns the flags of the one it took; throws, with the numbers of the best heap,
// when none holds `what`, a buffer or an image.
VkMemoryPropertyFlags allocate(const Core& core, const char* what, const VkMemoryRequirements& need,
                               const MemoryWish& wish, VkDeviceMemory* memory);

// The array's pages as a buffer, and its first byte there, as Device.imported has it.
std::optional<std::pair<std::shared_ptr<BufferCore>, uint64_t>> import_pages(const CorePtr& core, const py::array& data);

// Has a device import memory of the host, where it can: a buffer of every use that ours have must be importable by itself.
void allow_imports(Core& core, const std::vector<std::string>& extensions);

}  // namespace vkconv
