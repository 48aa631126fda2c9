// Stands between Kompute and Vulkan where Kompute does not look at a result: the linker sends its calls here (--wrap in
// CMakeLists.txt). kp::Sequence goes on with a command pool that was never made, which no driver survives; here that
// becomes a command buffer that was never made, which Device.recording looks for.
#include <vulkan/vulkan.h>

extern "C" {

VkResult __real_vkAllocateCommandBuffers(VkDevice device, const VkCommandBufferAllocateInfo* info, VkCommandBuffer* made);
void __real_vkFreeCommandBuffers(VkDevice device, VkCommandPool pool, uint32_t count, const VkCommandBuffer* buffers);

VkResult __wrap_vkAllocateCommandBuffers(VkDevice device, const VkCommandBufferAllocateInfo* info,
                                         VkCommandBuffer* made) {
  VkResult result = VK_ERROR_OUT_OF_HOST_MEMORY;
  if (info->commandPool != VK_NULL_HANDLE) result = __real_vkAllocateCommandBuffers(device, info, made);
  if (result != VK_SUCCESS)
    for (uint32_t i = 0; i < info->commandBufferCount; ++i) made[i] = VK_NULL_HANDLE;
  return result;
}

void __wrap_vkFreeCommandBuffers(VkDevice device, VkCommandPool pool, uint32_t count, const VkCommandBuffer* buffers) {
  if (pool != VK_NULL_HANDLE) __real_vkFreeCommandBuffers(device, pool, count, buffers);
}

}  // extern "C"
