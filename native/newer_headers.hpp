// Structures of extensions newer than the oldest Vulkan headers we build with (Debian 12: 1.3.239).
#pragma once

#include <vulkan/vulkan_core.h>

namespace vkconv {

constexpr auto kCooperativeMatrixExtension = "VK_KHR_cooperative_matrix";
constexpr auto kBfloat16Extension = "VK_KHR_shader_bfloat16";

#ifdef VK_KHR_cooperative_matrix
using CooperativeMatrixFeatures = VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
using CooperativeMatrixDeviceProperties = VkPhysicalDeviceCooperativeMatrixPropertiesKHR;
using CooperativeMatrixShape = VkCooperativeMatrixPropertiesKHR;
#else
struct CooperativeMatrixFeatures {
  VkStructureType sType;
  void* pNext;
  VkBool32 cooperativeMatrix;
  VkBool32 cooperativeMatrixRobustBufferAccess;
};
struct CooperativeMatrixDeviceProperties {
  VkStructureType sType;
  void* pNext;
  VkShaderStageFlags cooperativeMatrixSupportedStages;
};
struct CooperativeMatrixShape {
  VkStructureType sType;
  void* pNext;
  uint32_t MSize;
  uint32_t NSize;
  uint32_t KSize;
  int32_t AType;  // VkComponentTypeKHR, as are the next three
  int32_t BType;
  int32_t CType;
  int32_t ResultType;
  VkBool32 saturatingAccumulation;
  int32_t scope;  // VkScopeKHR
};
#endif
constexpr auto kCooperativeMatrixFeaturesType = static_cast<VkStructureType>(1000506000);
constexpr auto kCooperativeMatrixShapeType = static_cast<VkStructureType>(1000506001);
constexpr auto kCooperativeMatrixPropertiesType = static_cast<VkStructureType>(1000506002);
using GetCooperativeMatrixShapes = VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*, CooperativeMatrixShape*);

#ifdef VK_KHR_shader_bfloat16
using Bfloat16Features = VkPhysicalDeviceShaderBfloat16FeaturesKHR;
#else
struct Bfloat16Features {
  VkStructureType sType;
  void* pNext;
  VkBool32 shaderBFloat16Type;
  VkBool32 shaderBFloat16DotProduct;
  VkBool32 shaderBFloat16CooperativeMatrix;
};
#endif
constexpr auto kBfloat16FeaturesType = static_cast<VkStructureType>(1000141000);

}  // namespace vkconv
