// Memory for buffers and images.
#pragma once

#include "device.hpp"

namespace vkconv {

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

}  // namespace vkconv
