// The names of Vulkan's enumerants and flag bits, as facts give them.
#pragma once

#include "core.hpp"

namespace vkconv {

struct Name {
  uint64_t value;
  const char* name;
};

#define N(value) {static_cast<uint64_t>(value), #value}

constexpr Name kDeviceTypes[] = {N(VK_PHYSICAL_DEVICE_TYPE_OTHER), N(VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU),
                                 N(VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU), N(VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU),
                                 N(VK_PHYSICAL_DEVICE_TYPE_CPU)};
constexpr Name kQueueFlags[] = {N(VK_QUEUE_GRAPHICS_BIT),       N(VK_QUEUE_COMPUTE_BIT),
                                N(VK_QUEUE_TRANSFER_BIT),       N(VK_QUEUE_SPARSE_BINDING_BIT),
                                N(VK_QUEUE_PROTECTED_BIT),      {0x20, "VK_QUEUE_VIDEO_DECODE_BIT_KHR"},
                                {0x40, "VK_QUEUE_VIDEO_ENCODE_BIT_KHR"}, {0x100, "VK_QUEUE_OPTICAL_FLOW_BIT_NV"}};
constexpr Name kMemoryFlags[] = {N(VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT),
                                 N(VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT),
                                 N(VK_MEMORY_PROPERTY_HOST_COHERENT_BIT),
                                 N(VK_MEMORY_PROPERTY_HOST_CACHED_BIT),
                                 N(VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT),
                                 N(VK_MEMORY_PROPERTY_PROTECTED_BIT),
                                 N(VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD),
                                 N(VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD),
                                 N(VK_MEMORY_PROPERTY_RDMA_CAPABLE_BIT_NV)};
constexpr Name kHeapFlags[] = {N(VK_MEMORY_HEAP_DEVICE_LOCAL_BIT), N(VK_MEMORY_HEAP_MULTI_INSTANCE_BIT)};
constexpr Name kStages[] = {N(VK_SHADER_STAGE_VERTEX_BIT),
                            N(VK_SHADER_STAGE_TESSELLATION_CONTROL_BIT),
                            N(VK_SHADER_STAGE_TESSELLATION_EVALUATION_BIT),
                            N(VK_SHADER_STAGE_GEOMETRY_BIT),
                            N(VK_SHADER_STAGE_FRAGMENT_BIT),
                            N(VK_SHADER_STAGE_COMPUTE_BIT),
                            {0x40, "VK_SHADER_STAGE_TASK_BIT_EXT"},
                            {0x80, "VK_SHADER_STAGE_MESH_BIT_EXT"},
                            N(VK_SHADER_STAGE_RAYGEN_BIT_KHR),
                            N(VK_SHADER_STAGE_ANY_HIT_BIT_KHR),
                            N(VK_SHADER_STAGE_CLOSEST_HIT_BIT_KHR),
                            N(VK_SHADER_STAGE_MISS_BIT_KHR),
                            N(VK_SHADER_STAGE_INTERSECTION_BIT_KHR),
                            N(VK_SHADER_STAGE_CALLABLE_BIT_KHR)};
constexpr Name kSubgroupOperations[] = {
    N(VK_SUBGROUP_FEATURE_BASIC_BIT),     N(VK_SUBGROUP_FEATURE_VOTE_BIT),
    N(VK_SUBGROUP_FEATURE_ARITHMETIC_BIT), N(VK_SUBGROUP_FEATURE_BALLOT_BIT),
    N(VK_SUBGROUP_FEATURE_SHUFFLE_BIT),   N(VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT),
    N(VK_SUBGROUP_FEATURE_CLUSTERED_BIT), N(VK_SUBGROUP_FEATURE_QUAD_BIT),
    N(VK_SUBGROUP_FEATURE_PARTITIONED_BIT_NV), {0x200, "VK_SUBGROUP_FEATURE_ROTATE_BIT"},
    {0x400, "VK_SUBGROUP_FEATURE_ROTATE_CLUSTERED_BIT"}};
constexpr Name kIndependence[] = {N(VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_32_BIT_ONLY),
                                  N(VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_ALL),
                                  N(VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE)};
// By number, because older headers lack the later names.
constexpr Name kDriverIds[] = {{1, "VK_DRIVER_ID_AMD_PROPRIETARY"},
                               {2, "VK_DRIVER_ID_AMD_OPEN_SOURCE"},
                               {3, "VK_DRIVER_ID_MESA_RADV"},
                               {4, "VK_DRIVER_ID_NVIDIA_PROPRIETARY"},
                               {5, "VK_DRIVER_ID_INTEL_PROPRIETARY_WINDOWS"},
                               {6, "VK_DRIVER_ID_INTEL_OPEN_SOURCE_MESA"},
                               {7, "VK_DRIVER_ID_IMAGINATION_PROPRIETARY"},
                               {8, "VK_DRIVER_ID_QUALCOMM_PROPRIETARY"},
                               {9, "VK_DRIVER_ID_ARM_PROPRIETARY"},
                               {10, "VK_DRIVER_ID_GOOGLE_SWIFTSHADER"},
                               {11, "VK_DRIVER_ID_GGP_PROPRIETARY"},
                               {12, "VK_DRIVER_ID_BROADCOM_PROPRIETARY"},
                               {13, "VK_DRIVER_ID_MESA_LLVMPIPE"},
                               {14, "VK_DRIVER_ID_MOLTENVK"},
                               {15, "VK_DRIVER_ID_COREAVI_PROPRIETARY"},
                               {16, "VK_DRIVER_ID_JUICE_PROPRIETARY"},
                               {17, "VK_DRIVER_ID_VERISILICON_PROPRIETARY"},
                               {18, "VK_DRIVER_ID_MESA_TURNIP"},
                               {19, "VK_DRIVER_ID_MESA_V3DV"},
                               {20, "VK_DRIVER_ID_MESA_PANVK"},
                               {21, "VK_DRIVER_ID_SAMSUNG_PROPRIETARY"},
                               {22, "VK_DRIVER_ID_MESA_VENUS"},
                               {23, "VK_DRIVER_ID_MESA_DOZEN"},
                               {24, "VK_DRIVER_ID_MESA_NVK"},
                               {25, "VK_DRIVER_ID_IMAGINATION_OPEN_SOURCE_MESA"},
                               {26, "VK_DRIVER_ID_MESA_HONEYKRISP"}};
constexpr Name kComponentTypes[] = {{0, "VK_COMPONENT_TYPE_FLOAT16_KHR"},  {1, "VK_COMPONENT_TYPE_FLOAT32_KHR"},
                                    {2, "VK_COMPONENT_TYPE_FLOAT64_KHR"},  {3, "VK_COMPONENT_TYPE_SINT8_KHR"},
                                    {4, "VK_COMPONENT_TYPE_SINT16_KHR"},   {5, "VK_COMPONENT_TYPE_SINT32_KHR"},
                                    {6, "VK_COMPONENT_TYPE_SINT64_KHR"},   {7, "VK_COMPONENT_TYPE_UINT8_KHR"},
                                    {8, "VK_COMPONENT_TYPE_UINT16_KHR"},   {9, "VK_COMPONENT_TYPE_UINT32_KHR"},
                                    {10, "VK_COMPONENT_TYPE_UINT64_KHR"},  {1000141000, "VK_COMPONENT_TYPE_BFLOAT16_KHR"},
                                    {1000491002, "VK_COMPONENT_TYPE_FLOAT8_E4M3_EXT"},
                                    {1000491003, "VK_COMPONENT_TYPE_FLOAT8_E5M2_EXT"}};
constexpr Name kScopes[] = {{1, "VK_SCOPE_DEVICE_KHR"},
                            {2, "VK_SCOPE_WORKGROUP_KHR"},
                            {3, "VK_SCOPE_SUBGROUP_KHR"},
                            {5, "VK_SCOPE_QUEUE_FAMILY_KHR"}};

#undef N

// The enumerant's name, or its number in decimal for one newer than these tables.
template <size_t Count>
std::string enum_name(const Name (&names)[Count], uint64_t value) {
  for (const Name& item : names)
    if (item.value == value) return item.name;
  return std::to_string(value);
}

template <size_t Count>
py::list flag_names(const Name (&names)[Count], uint64_t bits) {
  py::list list;
  for (const Name& item : names)
    if ((bits & item.value) != 0) list.append(item.name);
  return list;
}

}  // namespace vkconv
