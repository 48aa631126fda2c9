// Finds the GPU's device, and the features of it that vkconv's pipelines use.
#include "program.h"

#include <stdlib.h>
#include <string.h>

#ifndef VK_KHR_shader_bfloat16
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR ((VkStructureType)1000141000)
typedef struct VkPhysicalDeviceShaderBfloat16FeaturesKHR {
  VkStructureType sType;
  void* pNext;
  VkBool32 shaderBFloat16Type;
  VkBool32 shaderBFloat16DotProduct;
  VkBool32 shaderBFloat16CooperativeMatrix;
} VkPhysicalDeviceShaderBfloat16FeaturesKHR;
#endif

// A feature structure, whole, where the device has it in core or by extension: what is offered is enabled.
struct Feature {
  VkStructureType type;
  size_t size;
  uint32_t core_since;  // 0: never became core
  const char* extension;
};

#define FEATURE(type, structure, core, extension) {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_##type, sizeof(structure), core, extension}
static const struct Feature kFeatures[] = {
    FEATURE(16BIT_STORAGE_FEATURES, VkPhysicalDevice16BitStorageFeatures, VK_API_VERSION_1_1, "VK_KHR_16bit_storage"),
    FEATURE(VARIABLE_POINTERS_FEATURES, VkPhysicalDeviceVariablePointersFeatures, VK_API_VERSION_1_1,
            "VK_KHR_variable_pointers"),
    FEATURE(8BIT_STORAGE_FEATURES, VkPhysicalDevice8BitStorageFeatures, VK_API_VERSION_1_2, "VK_KHR_8bit_storage"),
    FEATURE(SHADER_FLOAT16_INT8_FEATURES, VkPhysicalDeviceShaderFloat16Int8Features, VK_API_VERSION_1_2,
            "VK_KHR_shader_float16_int8"),
    FEATURE(SHADER_ATOMIC_INT64_FEATURES, VkPhysicalDeviceShaderAtomicInt64Features, VK_API_VERSION_1_2,
            "VK_KHR_shader_atomic_int64"),
    FEATURE(SHADER_SUBGROUP_EXTENDED_TYPES_FEATURES, VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures,
            VK_API_VERSION_1_2, "VK_KHR_shader_subgroup_extended_types"),
    FEATURE(VULKAN_MEMORY_MODEL_FEATURES, VkPhysicalDeviceVulkanMemoryModelFeatures, VK_API_VERSION_1_2,
            "VK_KHR_vulkan_memory_model"),
    FEATURE(SCALAR_BLOCK_LAYOUT_FEATURES, VkPhysicalDeviceScalarBlockLayoutFeatures, VK_API_VERSION_1_2,
            "VK_EXT_scalar_block_layout"),
    FEATURE(SUBGROUP_SIZE_CONTROL_FEATURES, VkPhysicalDeviceSubgroupSizeControlFeatures, VK_API_VERSION_1_3,
            "VK_EXT_subgroup_size_control"),
    FEATURE(SHADER_INTEGER_DOT_PRODUCT_FEATURES, VkPhysicalDeviceShaderIntegerDotProductFeatures, VK_API_VERSION_1_3,
            "VK_KHR_shader_integer_dot_product"),
    FEATURE(ZERO_INITIALIZE_WORKGROUP_MEMORY_FEATURES, VkPhysicalDeviceZeroInitializeWorkgroupMemoryFeatures,
            VK_API_VERSION_1_3, "VK_KHR_zero_initialize_workgroup_memory"),
    FEATURE(MAINTENANCE_4_FEATURES, VkPhysicalDeviceMaintenance4Features, VK_API_VERSION_1_3, "VK_KHR_maintenance4"),
    FEATURE(SHADER_ATOMIC_FLOAT_FEATURES_EXT, VkPhysicalDeviceShaderAtomicFloatFeaturesEXT, 0,
            "VK_EXT_shader_atomic_float"),
    FEATURE(SHADER_ATOMIC_FLOAT_2_FEATURES_EXT, VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT, 0,
            "VK_EXT_shader_atomic_float2"),
    FEATURE(WORKGROUP_MEMORY_EXPLICIT_LAYOUT_FEATURES_KHR, VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR, 0,
            "VK_KHR_workgroup_memory_explicit_layout"),
    FEATURE(SHADER_SUBGROUP_UNIFORM_CONTROL_FLOW_FEATURES_KHR,
            VkPhysicalDeviceShaderSubgroupUniformControlFlowFeaturesKHR, 0,
            "VK_KHR_shader_subgroup_uniform_control_flow"),
    FEATURE(COOPERATIVE_MATRIX_FEATURES_KHR, VkPhysicalDeviceCooperativeMatrixFeaturesKHR, 0,
            "VK_KHR_cooperative_matrix"),
    FEATURE(SHADER_BFLOAT16_FEATURES_KHR, VkPhysicalDeviceShaderBfloat16FeaturesKHR, 0, "VK_KHR_shader_bfloat16"),
    FEATURE(PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR, VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR, 0,
            "VK_KHR_pipeline_executable_properties"),
};
enum { kFeatureCount = sizeof kFeatures / sizeof *kFeatures };
_Static_assert((int)kFeatureCount < (int)kMaxExtensions, "each may be an extension, and there is one more");

static bool offers(const VkExtensionProperties* list, uint32_t count, const char* name) {
  for (uint32_t i = 0; i < count; ++i)
    if (strcmp(list[i].extensionName, name) == 0) return true;
  return false;
}

void find_device(struct Offer* offer) {
  INSTANCE_CALL(NULL, vkCreateInstance);
  const VkApplicationInfo application = {VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_3};
  const VkInstanceCreateInfo info = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
  VkResult result = vkCreateInstance(&info, NULL, &offer->instance);
  if (result != VK_SUCCESS) fail("vkCreateInstance", result);
  INSTANCE_CALL(offer->instance, vkEnumeratePhysicalDevices);
  INSTANCE_CALL(offer->instance, vkEnumerateDeviceExtensionProperties);
  INSTANCE_CALL(offer->instance, vkGetPhysicalDeviceProperties2);
  INSTANCE_CALL(offer->instance, vkGetPhysicalDeviceFeatures2);

  uint32_t count = 1;
  result = vkEnumeratePhysicalDevices(offer->instance, &count, &offer->physical);
  if (result < 0 || count == 0) fail("no device: vkEnumeratePhysicalDevices", result);
  VkPhysicalDeviceDriverProperties driver = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
  VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &driver};
  vkGetPhysicalDeviceProperties2(offer->physical, &properties);
  const uint32_t version = properties.properties.apiVersion;

  uint32_t offered = 0;
  vkEnumerateDeviceExtensionProperties(offer->physical, NULL, &offered, NULL);
  VkExtensionProperties* list = calloc(offered, sizeof *list);
  vkEnumerateDeviceExtensionProperties(offer->physical, NULL, &offered, list);
  offer->features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  for (size_t i = 0; i < kFeatureCount; ++i) {
    const struct Feature* row = &kFeatures[i];
    const bool core = row->core_since != 0 && version >= row->core_since;
    if (!core && !offers(list, offered, row->extension)) continue;
    if (!core) offer->extensions[offer->extension_count++] = row->extension;
    VkBaseOutStructure* structure = calloc(1, row->size);
    structure->sType = row->type;
    structure->pNext = offer->features.pNext;
    offer->features.pNext = structure;
  }
  if (offers(list, offered, "VK_KHR_shader_non_semantic_info"))
    offer->extensions[offer->extension_count++] = "VK_KHR_shader_non_semantic_info";
  free(list);
  vkGetPhysicalDeviceFeatures2(offer->physical, &offer->features);
  offer->features.features.robustBufferAccess = VK_FALSE;  // checks every access; vkconv leaves it off too
  for (VkBaseOutStructure* at = offer->features.pNext; at != NULL; at = at->pNext)
    if (at->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR)
      offer->statistics = ((VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR*)at)->pipelineExecutableInfo;

  fputs("{\"device\": ", stdout);
  put_text(stdout, properties.properties.deviceName);
  fputs(", \"driver\": ", stdout);
  put_text(stdout, driver.driverName);
  fputs(", \"driver_info\": ", stdout);
  put_text(stdout, driver.driverInfo);
  printf(", \"vulkan\": \"%u.%u\", \"statistics\": %s}\n", VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version),
         offer->statistics ? "true" : "false");
  fflush(stdout);
}
