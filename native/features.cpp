// The feature structures the bridge knows: one table serves the facts and the creation of a device.
#include "facts.hpp"
#include "newer_headers.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace vkconv {
namespace {

struct Field {
  const char* name;
  size_t offset;
  bool enable;  // false: reported, never switched on
};

struct FeatureStruct {
  const char* name;
  VkStructureType type;
  size_t size;
  uint32_t core_since;    // 0: never became core
  const char* extension;  // offers it below that version
  std::vector<Field> fields;
};

#define ON(type, field) {#field, offsetof(type, field), true}
#define FACT(type, field) {#field, offsetof(type, field), false}

const std::vector<FeatureStruct>& feature_structs() {
  using Storage16 = VkPhysicalDevice16BitStorageFeatures;
  using Storage8 = VkPhysicalDevice8BitStorageFeatures;
  using Pointers = VkPhysicalDeviceVariablePointersFeatures;
  using Float16Int8 = VkPhysicalDeviceShaderFloat16Int8Features;
  using AtomicInt64 = VkPhysicalDeviceShaderAtomicInt64Features;
  using SubgroupTypes = VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures;
  using MemoryModel = VkPhysicalDeviceVulkanMemoryModelFeatures;
  using Timeline = VkPhysicalDeviceTimelineSemaphoreFeatures;
  using QueryReset = VkPhysicalDeviceHostQueryResetFeatures;
  using Address = VkPhysicalDeviceBufferDeviceAddressFeatures;
  using Scalar = VkPhysicalDeviceScalarBlockLayoutFeatures;
  using SubgroupSize = VkPhysicalDeviceSubgroupSizeControlFeatures;
  using IntegerDot = VkPhysicalDeviceShaderIntegerDotProductFeatures;
  using ZeroInit = VkPhysicalDeviceZeroInitializeWorkgroupMemoryFeatures;
  using Sync2 = VkPhysicalDeviceSynchronization2Features;
  using Maintenance4 = VkPhysicalDeviceMaintenance4Features;
  using Atomic = VkPhysicalDeviceShaderAtomicFloatFeaturesEXT;
  using Atomic2 = VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT;
  using SharedLayout = VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR;
  using UniformFlow = VkPhysicalDeviceShaderSubgroupUniformControlFlowFeaturesKHR;
  using Matrix = CooperativeMatrixFeatures;
  static const std::vector<FeatureStruct> table = {
      {"VkPhysicalDevice16BitStorageFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES,
       sizeof(Storage16), VK_API_VERSION_1_1, "VK_KHR_16bit_storage",
       {ON(Storage16, storageBuffer16BitAccess), ON(Storage16, uniformAndStorageBuffer16BitAccess),
        ON(Storage16, storagePushConstant16), FACT(Storage16, storageInputOutput16)}},
      {"VkPhysicalDeviceVariablePointersFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VARIABLE_POINTERS_FEATURES,
       sizeof(Pointers), VK_API_VERSION_1_1, "VK_KHR_variable_pointers",
       {ON(Pointers, variablePointersStorageBuffer), ON(Pointers, variablePointers)}},
      {"VkPhysicalDevice8BitStorageFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES,
       sizeof(Storage8), VK_API_VERSION_1_2, "VK_KHR_8bit_storage",
       {ON(Storage8, storageBuffer8BitAccess), ON(Storage8, uniformAndStorageBuffer8BitAccess),
        ON(Storage8, storagePushConstant8)}},
      {"VkPhysicalDeviceShaderFloat16Int8Features", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES,
       sizeof(Float16Int8), VK_API_VERSION_1_2, "VK_KHR_shader_float16_int8",
       {ON(Float16Int8, shaderFloat16), ON(Float16Int8, shaderInt8)}},
      {"VkPhysicalDeviceShaderAtomicInt64Features", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_INT64_FEATURES,
       sizeof(AtomicInt64), VK_API_VERSION_1_2, "VK_KHR_shader_atomic_int64",
       {ON(AtomicInt64, shaderBufferInt64Atomics), ON(AtomicInt64, shaderSharedInt64Atomics)}},
      {"VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures",
       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SUBGROUP_EXTENDED_TYPES_FEATURES, sizeof(SubgroupTypes),
       VK_API_VERSION_1_2, "VK_KHR_shader_subgroup_extended_types", {ON(SubgroupTypes, shaderSubgroupExtendedTypes)}},
      {"VkPhysicalDeviceVulkanMemoryModelFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES,
       sizeof(MemoryModel), VK_API_VERSION_1_2, "VK_KHR_vulkan_memory_model",
       {ON(MemoryModel, vulkanMemoryModel), ON(MemoryModel, vulkanMemoryModelDeviceScope),
        ON(MemoryModel, vulkanMemoryModelAvailabilityVisibilityChains)}},
      {"VkPhysicalDeviceTimelineSemaphoreFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES,
       sizeof(Timeline), VK_API_VERSION_1_2, "VK_KHR_timeline_semaphore", {ON(Timeline, timelineSemaphore)}},
      {"VkPhysicalDeviceHostQueryResetFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_HOST_QUERY_RESET_FEATURES,
       sizeof(QueryReset), VK_API_VERSION_1_2, "VK_EXT_host_query_reset", {ON(QueryReset, hostQueryReset)}},
      {"VkPhysicalDeviceBufferDeviceAddressFeatures",
       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES, sizeof(Address), VK_API_VERSION_1_2,
       "VK_KHR_buffer_device_address",
       {ON(Address, bufferDeviceAddress), FACT(Address, bufferDeviceAddressCaptureReplay),
        FACT(Address, bufferDeviceAddressMultiDevice)}},
      {"VkPhysicalDeviceScalarBlockLayoutFeatures", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SCALAR_BLOCK_LAYOUT_FEATURES,
       sizeof(Scalar), VK_API_VERSION_1_2, "VK_EXT_scalar_block_layout", {ON(Scalar, scalarBlockLayout)}},
      {"VkPhysicalDeviceSubgroupSizeControlFeatures",
       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES, sizeof(SubgroupSize), VK_API_VERSION_1_3,
       "VK_EXT_subgroup_size_control", {ON(SubgroupSize, subgroupSizeControl), ON(SubgroupSize, computeFullSubgroups)}},
      {"VkPhysicalDeviceShaderIntegerDotProductFeatures",
       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES, sizeof(IntegerDot), VK_API_VERSION_1_3,
       "VK_KHR_shader_integer_dot_product", {ON(IntegerDot, shaderIntegerDotProduct)}},
      {"VkPhysicalDeviceZeroInitializeWorkgroupMemoryFeatures",
       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ZERO_INITIALIZE_WORKGROUP_MEMORY_FEATURES, sizeof(ZeroInit),
       VK_API_VERSION_1_3, "VK_KHR_zero_initialize_workgroup_memory",
       {ON(ZeroInit, shaderZeroInitializeWorkgroupMemory)}},
      {"VkPhysicalDeviceSynchronization2Features", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SYNCHRONIZATION_2_FEATURES,
       sizeof(Sync2), VK_API_VERSION_1_3, "VK_KHR_synchronization2", {ON(Sync2, synchronization2)}},
      {"VkPhysicalDeviceMaintenance4Features", VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES,
       sizeof(Maintenance4), VK_API_VERSION_1_3, "VK_KHR_maintenance4", {ON(Maintenance4, maintenance4)}},
      {"VkPhysicalDeviceShaderAtomicFloatFeaturesEXT",
       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT, sizeof(Atomic), 0,
       "VK_EXT_shader_atomic_float",
       {ON(Atomic, shaderBufferFloat32Atomics), ON(Atomic, shaderBufferFloat32AtomicAdd),
        ON(Atomic, shaderBufferFloat64Atomics), ON(Atomic, shaderBufferFloat64AtomicAdd),
        ON(Atomic, shaderSharedFloat32Atomics), ON(Atomic, shaderSharedFloat32AtomicAdd),
        ON(Atomic, shaderSharedFloat64Atomics), ON(Atomic, shaderSharedFloat64AtomicAdd),
        FACT(Atomic, shaderImageFloat32Atomics), FACT(Atomic, shaderImageFloat32AtomicAdd),
        FACT(Atomic, sparseImageFloat32Atomics), FACT(Atomic, sparseImageFloat32AtomicAdd)}},
      {"VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT",
       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_2_FEATURES_EXT, sizeof(Atomic2), 0,
       "VK_EXT_shader_atomic_float2",
       {ON(Atomic2, shaderBufferFloat16Atomics), ON(Atomic2, shaderBufferFloat16AtomicAdd),
        ON(Atomic2, shaderBufferFloat16AtomicMinMax), ON(Atomic2, shaderBufferFloat32AtomicMinMax),
        ON(Atomic2, shaderBufferFloat64AtomicMinMax), ON(Atomic2, shaderSharedFloat16Atomics),
        ON(Atomic2, shaderSharedFloat16AtomicAdd), ON(Atomic2, shaderSharedFloat16AtomicMinMax),
        ON(Atomic2, shaderSharedFloat32AtomicMinMax), ON(Atomic2, shaderSharedFloat64AtomicMinMax),
        FACT(Atomic2, shaderImageFloat32AtomicMinMax), FACT(Atomic2, sparseImageFloat32AtomicMinMax)}},
      {"VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR",
       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_WORKGROUP_MEMORY_EXPLICIT_LAYOUT_FEATURES_KHR, sizeof(SharedLayout), 0,
       "VK_KHR_workgroup_memory_explicit_layout",
       {ON(SharedLayout, workgroupMemoryExplicitLayout),
        ON(SharedLayout, workgroupMemoryExplicitLayoutScalarBlockLayout),
        ON(SharedLayout, workgroupMemoryExplicitLayout8BitAccess),
        ON(SharedLayout, workgroupMemoryExplicitLayout16BitAccess)}},
      {"VkPhysicalDeviceShaderSubgroupUniformControlFlowFeaturesKHR",
       VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SUBGROUP_UNIFORM_CONTROL_FLOW_FEATURES_KHR, sizeof(UniformFlow), 0,
       "VK_KHR_shader_subgroup_uniform_control_flow", {ON(UniformFlow, shaderSubgroupUniformControlFlow)}},
      {"VkPhysicalDeviceCooperativeMatrixFeaturesKHR", kCooperativeMatrixFeaturesType, sizeof(Matrix), 0,
       kCooperativeMatrixExtension,
       {ON(Matrix, cooperativeMatrix), FACT(Matrix, cooperativeMatrixRobustBufferAccess)}},
      {"VkPhysicalDeviceShaderBfloat16FeaturesKHR", kBfloat16FeaturesType, sizeof(Bfloat16Features), 0,
       kBfloat16Extension,
       {ON(Bfloat16Features, shaderBFloat16Type), ON(Bfloat16Features, shaderBFloat16DotProduct),
        ON(Bfloat16Features, shaderBFloat16CooperativeMatrix)}},
  };
  return table;
}

// robustBufferAccess stays off: it makes every access slower, and shaders keep to their buffers.
const std::vector<Field>& base_fields() {
  using F = VkPhysicalDeviceFeatures;
  static const std::vector<Field> table = {
      FACT(F, robustBufferAccess),
      FACT(F, pipelineStatisticsQuery),
      FACT(F, shaderStorageImageExtendedFormats),
      FACT(F, shaderStorageImageReadWithoutFormat),
      FACT(F, shaderStorageImageWriteWithoutFormat),
      ON(F, shaderUniformBufferArrayDynamicIndexing),
      ON(F, shaderStorageBufferArrayDynamicIndexing),
      ON(F, shaderFloat64),
      ON(F, shaderInt64),
      ON(F, shaderInt16),
      FACT(F, sparseBinding),
      FACT(F, sparseResidencyBuffer),
  };
  return table;
}

// Extensions without a feature structure that are worth having.
constexpr const char* kPlainExtensions[] = {
    "VK_EXT_memory_budget",
    "VK_KHR_shader_non_semantic_info",
    "VK_KHR_portability_subset",  // must be enabled where it is offered
};
constexpr const char* kRequiredExtension = "VK_KHR_portability_subset";

VkBool32* field_at(void* base, const Field& field) {
  return reinterpret_cast<VkBool32*>(static_cast<char*>(base) + field.offset);
}

std::vector<uint64_t> make_block(const FeatureStruct& row) {
  std::vector<uint64_t> block((row.size + 7) / 8, 0);
  reinterpret_cast<VkBaseOutStructure*>(block.data())->sType = row.type;
  return block;
}

void link_blocks(VkPhysicalDeviceFeatures2& head, std::vector<std::vector<uint64_t>>& blocks) {
  void** tail = &head.pNext;
  for (auto& block : blocks) {
    *tail = block.data();
    tail = reinterpret_cast<void**>(&reinterpret_cast<VkBaseOutStructure*>(block.data())->pNext);
  }
}

// The rows this device can be asked about, each as a block chained into `head`.
struct Query {
  VkPhysicalDeviceFeatures2 head{};
  std::vector<const FeatureStruct*> rows;
  std::vector<std::vector<uint64_t>> blocks;

  Query(const Instance& instance, VkPhysicalDevice physical) {
    const uint32_t version = usable_version(instance, physical);
    const auto extensions = device_extensions(physical);
    head.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    if (version < VK_API_VERSION_1_1) {
      vkGetPhysicalDeviceFeatures(physical, &head.features);
      return;
    }
    for (const auto& row : feature_structs()) {
      const bool core = row.core_since != 0 && version >= row.core_since;
      if (!core && extensions.count(row.extension) == 0) continue;
      rows.push_back(&row);
      blocks.push_back(make_block(row));
    }
    link_blocks(head, blocks);
    vkGetPhysicalDeviceFeatures2(physical, &head);
  }
};

}  // namespace

py::dict feature_facts(const Instance& instance, VkPhysicalDevice physical) {
  Query query(instance, physical);
  py::dict features;
  py::dict base;
  for (const auto& field : base_fields()) base[field.name] = *field_at(&query.head.features, field) == VK_TRUE;
  features["VkPhysicalDeviceFeatures"] = base;
  for (size_t i = 0; i < query.rows.size(); ++i) {
    py::dict values;
    for (const auto& field : query.rows[i]->fields)
      values[field.name] = *field_at(query.blocks[i].data(), field) == VK_TRUE;
    features[query.rows[i]->name] = values;
  }
  return features;
}

FeatureSet::FeatureSet(const Instance& instance, VkPhysicalDevice physical, const std::set<std::string>& disabled) {
  std::set<std::string> known(std::begin(kPlainExtensions), std::end(kPlainExtensions));
  for (const auto& field : base_fields()) known.insert(field.name);
  for (const auto& row : feature_structs()) {
    known.insert({row.name, row.extension});
    for (const auto& field : row.fields) known.insert(field.name);
  }
  for (const auto& name : disabled) {
    if (known.count(name) == 0)
      throw py::value_error("disable: '" + name + "' is no feature, feature structure or extension that the bridge enables");
    if (name == kRequiredExtension) throw py::value_error("disable: '" + name + "' must be enabled where it is offered");
  }

  Query query(instance, physical);
  const uint32_t version = usable_version(instance, physical);
  const auto offered = device_extensions(physical);
  features_.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;

  const auto keep = [&](const Field& field, const void* from, void* to) {
    auto* source = field_at(const_cast<void*>(from), field);
    if (!field.enable || *source == VK_FALSE || disabled.count(field.name) != 0) return false;
    *field_at(to, field) = VK_TRUE;
    names_.push_back(field.name);
    return true;
  };
  for (const auto& field : base_fields()) keep(field, &query.head.features, &features_.features);
  for (size_t i = 0; i < query.rows.size(); ++i) {
    const FeatureStruct& row = *query.rows[i];
    if (disabled.count(row.name) != 0 || disabled.count(row.extension) != 0) continue;
    auto block = make_block(row);
    bool any = false;
    for (const auto& field : row.fields) any |= keep(field, query.blocks[i].data(), block.data());
    if (!any) continue;
    const bool core = row.core_since != 0 && version >= row.core_since;
    if (!core) extensions_.push_back(row.extension);
    blocks_.push_back(std::move(block));
  }
  for (const char* name : kPlainExtensions)
    if (offered.count(name) != 0 && disabled.count(name) == 0) extensions_.push_back(name);

  link_blocks(features_, blocks_);
}

bool FeatureSet::has(const std::string& feature) const {
  return std::find(names_.begin(), names_.end(), feature) != names_.end();
}

}  // namespace vkconv
