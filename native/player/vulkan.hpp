// Vulkan's functions, found when the player starts: it is built without the loader, and tells where there is none.
#pragma once

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include <string>

namespace player {

#define PLAYER_INSTANCE_FUNCTIONS(F)                                                                        \
  F(vkDestroyInstance) F(vkEnumeratePhysicalDevices) F(vkGetPhysicalDeviceProperties)                       \
  F(vkGetPhysicalDeviceProperties2) F(vkGetPhysicalDeviceFeatures2) F(vkGetPhysicalDeviceMemoryProperties)  \
  F(vkGetPhysicalDeviceQueueFamilyProperties) F(vkEnumerateDeviceExtensionProperties) F(vkCreateDevice)     \
  F(vkGetPhysicalDeviceImageFormatProperties) F(vkGetDeviceProcAddr)

#define PLAYER_DEVICE_FUNCTIONS(F)                                                                              \
  F(vkGetDeviceQueue) F(vkCreateCommandPool) F(vkFreeCommandBuffers) F(vkAllocateCommandBuffers)                  \
  F(vkBeginCommandBuffer) F(vkEndCommandBuffer) F(vkCmdBindPipeline) F(vkCmdBindDescriptorSets)                 \
  F(vkCmdPushConstants) F(vkCmdDispatch) F(vkCmdCopyBuffer) F(vkCmdFillBuffer) F(vkCmdPipelineBarrier)          \
  F(vkCmdWriteTimestamp) F(vkCmdResetQueryPool) F(vkCreateQueryPool) F(vkDestroyQueryPool)                      \
  F(vkGetQueryPoolResults) F(vkQueueSubmit) F(vkDeviceWaitIdle) F(vkCreateFence) F(vkDestroyFence)              \
  F(vkWaitForFences) F(vkCreateBuffer) F(vkDestroyBuffer) F(vkGetBufferMemoryRequirements) F(vkAllocateMemory)  \
  F(vkFreeMemory) F(vkBindBufferMemory) F(vkMapMemory) F(vkCreateDescriptorSetLayout)                           \
  F(vkDestroyDescriptorSetLayout) F(vkCreatePipelineLayout) F(vkDestroyPipelineLayout) F(vkCreateShaderModule)  \
  F(vkDestroyShaderModule) F(vkCreatePipelineCache) F(vkCreateComputePipelines) F(vkDestroyPipeline) F(vkCreateDescriptorPool)           \
  F(vkDestroyDescriptorPool) F(vkAllocateDescriptorSets) F(vkUpdateDescriptorSets) F(vkCreateSampler)           \
  F(vkCreateImage) F(vkDestroyImage) F(vkGetImageMemoryRequirements) F(vkBindImageMemory) F(vkCreateImageView) \
  F(vkDestroyImageView) F(vkCmdClearColorImage)

struct Functions {
  PFN_vkGetInstanceProcAddr vkGetInstanceProcAddr = nullptr;
  PFN_vkCreateInstance vkCreateInstance = nullptr;
  PFN_vkEnumerateInstanceLayerProperties vkEnumerateInstanceLayerProperties = nullptr;
#define F(name) PFN_##name name = nullptr;
  PLAYER_INSTANCE_FUNCTIONS(F)
  PLAYER_DEVICE_FUNCTIONS(F)
#undef F

  void open();                       // raises Refused where there is no loader
  void of_instance(VkInstance made);  // raises Refused for a function that the driver lacks
  void of_device(VkDevice made);
};

extern Functions vk;

// A call that the driver answered with an error; `lost` where the device is gone.
struct Failed {
  std::string what;
  bool lost;
};

void check(VkResult result, const std::string& what);

}  // namespace player
