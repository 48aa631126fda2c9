// Compiles a pipeline and prints its statistics.
#include "program.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static void put_statistic(FILE* out, const VkPipelineExecutableStatisticKHR* statistic) {
  put_text(out, statistic->name);
  switch (statistic->format) {
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR:
      fputs(statistic->value.b32 ? ": true" : ": false", out);
      break;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
      fprintf(out, ": %lld", (long long)statistic->value.i64);
      break;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR:
      fprintf(out, ": %llu", (unsigned long long)statistic->value.u64);
      break;
    default:
      if (isfinite(statistic->value.f64))
        fprintf(out, ": %.17g", statistic->value.f64);
      else
        fputs(": null", out);
  }
}

static void refuse(FILE* out, const struct Job* job, const char* call, int result) {
  fputs("{\"id\": ", out);
  put_text(out, job->id);
  fputs(", \"outcome\": \"refused\", \"call\": ", out);
  put_text(out, call);
  fprintf(out, ", \"result\": %d}\n", result);
}

static uint32_t* read_words(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return NULL;
  fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  rewind(file);
  uint32_t* words = malloc(size > 0 ? (size_t)size : 1);
  *bytes = fread(words, 1, size > 0 ? (size_t)size : 0, file);
  fclose(file);
  if (size > 0 && *bytes == (size_t)size) return words;
  free(words);
  return NULL;
}

static void save_isa(VkDevice device, PFN_vkGetDeviceProcAddr vkGetDeviceProcAddr, const VkPipelineExecutableInfoKHR* of,
                     FILE* file) {
  DEVICE_CALL(device, vkGetPipelineExecutableInternalRepresentationsKHR);
  uint32_t count = 0;
  vkGetPipelineExecutableInternalRepresentationsKHR(device, of, &count, NULL);
  VkPipelineExecutableInternalRepresentationKHR* texts = calloc(count, sizeof *texts);
  for (uint32_t i = 0; i < count; ++i)
    texts[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
  vkGetPipelineExecutableInternalRepresentationsKHR(device, of, &count, texts);  // their sizes
  for (uint32_t i = 0; i < count; ++i) texts[i].pData = calloc(1, texts[i].dataSize + 1);
  vkGetPipelineExecutableInternalRepresentationsKHR(device, of, &count, texts);
  for (uint32_t i = 0; i < count; ++i)
    if (texts[i].isText)
      fprintf(file, "==== %s: %s\n%s\n", texts[i].name, texts[i].description, (const char*)texts[i].pData);
}

static void put_executables(FILE* out, VkDevice device, PFN_vkGetDeviceProcAddr vkGetDeviceProcAddr, VkPipeline pipeline,
                            const char* isa_file) {
  DEVICE_CALL(device, vkGetPipelineExecutablePropertiesKHR);
  DEVICE_CALL(device, vkGetPipelineExecutableStatisticsKHR);
  const VkPipelineInfoKHR info = {VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR, .pipeline = pipeline};
  uint32_t count = 0;
  vkGetPipelineExecutablePropertiesKHR(device, &info, &count, NULL);
  VkPipelineExecutablePropertiesKHR* executables = calloc(count, sizeof *executables);
  for (uint32_t i = 0; i < count; ++i) executables[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR;
  vkGetPipelineExecutablePropertiesKHR(device, &info, &count, executables);
  FILE* isa = isa_file[0] != 0 ? fopen(isa_file, "w") : NULL;
  for (uint32_t i = 0; i < count; ++i) {
    const VkPipelineExecutableInfoKHR of = {VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, .pipeline = pipeline,
                                            .executableIndex = i};
    uint32_t number = 0;
    vkGetPipelineExecutableStatisticsKHR(device, &of, &number, NULL);
    VkPipelineExecutableStatisticKHR* statistics = calloc(number, sizeof *statistics);
    for (uint32_t k = 0; k < number; ++k) statistics[k].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    vkGetPipelineExecutableStatisticsKHR(device, &of, &number, statistics);
    fputs(i > 0 ? ", {\"name\": " : "{\"name\": ", out);
    put_text(out, executables[i].name);
    fprintf(out, ", \"subgroup_size\": %u, \"statistics\": {", executables[i].subgroupSize);
    for (uint32_t k = 0; k < number; ++k) {
      if (k > 0) fputs(", ", out);
      put_statistic(out, &statistics[k]);
    }
    fputs("}}", out);
    if (isa != NULL) save_isa(device, vkGetDeviceProcAddr, &of, isa);
  }
  if (isa != NULL) fclose(isa);
}

static VkDescriptorType descriptor_type(const struct Job* job, uint32_t binding) {
  switch (job->kinds == NULL ? 'b' : job->kinds[binding]) {
    case 's':
      return VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER;
    case 'i':
      return VK_DESCRIPTOR_TYPE_STORAGE_IMAGE;
    default:
      return VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
  }
}

void compile(FILE* out, const struct Offer* offer, const struct Job* job) {
  INSTANCE_CALL(offer->instance, vkCreateDevice);
  INSTANCE_CALL(offer->instance, vkGetDeviceProcAddr);
  const float priority = 1.0f;
  const VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
                                         .pQueuePriorities = &priority};
  const VkDeviceCreateInfo device_info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                          .pNext = &offer->features,
                                          .queueCreateInfoCount = 1,
                                          .pQueueCreateInfos = &queue,
                                          .enabledExtensionCount = offer->extension_count,
                                          .ppEnabledExtensionNames = offer->extensions};
  VkDevice device;
  VkResult result = vkCreateDevice(offer->physical, &device_info, NULL, &device);
  if (result != VK_SUCCESS) {
    refuse(out, job, "vkCreateDevice", result);
    return;
  }
  DEVICE_CALL(device, vkCreateDescriptorSetLayout);
  DEVICE_CALL(device, vkCreatePipelineLayout);
  DEVICE_CALL(device, vkCreateShaderModule);
  DEVICE_CALL(device, vkCreateComputePipelines);

  VkDescriptorSetLayoutBinding* slots = calloc(job->bindings + 1, sizeof *slots);
  for (uint32_t i = 0; i < job->bindings; ++i)
    slots[i] = (VkDescriptorSetLayoutBinding){i, descriptor_type(job, i), 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL};
  const VkDescriptorSetLayoutCreateInfo set_info = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                    .bindingCount = job->bindings, .pBindings = slots};
  VkDescriptorSetLayout set_layout;
  result = vkCreateDescriptorSetLayout(device, &set_info, NULL, &set_layout);
  if (result != VK_SUCCESS) {
    refuse(out, job, "vkCreateDescriptorSetLayout", result);
    return;
  }
  const VkPushConstantRange push = {VK_SHADER_STAGE_COMPUTE_BIT, 0, job->push_bytes};
  const VkPipelineLayoutCreateInfo layout_info = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                                  .setLayoutCount = 1,
                                                  .pSetLayouts = &set_layout,
                                                  .pushConstantRangeCount = job->push_bytes > 0,
                                                  .pPushConstantRanges = &push};
  VkPipelineLayout layout;
  result = vkCreatePipelineLayout(device, &layout_info, NULL, &layout);
  if (result != VK_SUCCESS) {
    refuse(out, job, "vkCreatePipelineLayout", result);
    return;
  }

  size_t bytes = 0;
  uint32_t* code = read_words(job->spirv_file, &bytes);
  if (code == NULL) {
    fprintf(stderr, "%s cannot be read\n", job->spirv_file);
    _exit(4);
  }
  VkSpecializationMapEntry* entries = calloc(job->word_count + 1, sizeof *entries);
  for (uint32_t i = 0; i < job->word_count; ++i) entries[i] = (VkSpecializationMapEntry){i, 4 * i, 4};
  const VkSpecializationInfo constants = {job->word_count, entries, 4 * (size_t)job->word_count, job->words};
  const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo subgroup = {
      VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
      .requiredSubgroupSize = job->subgroup_size};
  const VkPipelineCreateFlags isa = job->isa_file[0] != 0 ? VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR : 0;

  // Some compilers begin with the module: both calls are timed.
  const double started = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  const VkShaderModuleCreateInfo module_info = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = bytes,
                                                .pCode = code};
  VkShaderModule module;
  result = vkCreateShaderModule(device, &module_info, NULL, &module);
  if (result != VK_SUCCESS) {
    refuse(out, job, "vkCreateShaderModule", result);
    return;
  }
  const VkComputePipelineCreateInfo info = {
      VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
      .flags = offer->statistics ? VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR | isa : 0,
      .stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                .pNext = job->subgroup_size != 0 ? &subgroup : NULL,
                .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                .module = module,
                .pName = "main",
                .pSpecializationInfo = &constants},
      .layout = layout};
  VkPipeline pipeline;
  result = vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &pipeline);
  const double seconds = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - started;
  if (result != VK_SUCCESS) {
    refuse(out, job, "vkCreateComputePipelines", result);
    return;
  }
  fputs("{\"id\": ", out);
  put_text(out, job->id);
  fprintf(out, ", \"outcome\": \"compiled\", \"compile_ms\": %.3f, \"executables\": [", 1e3 * seconds);
  if (offer->statistics) put_executables(out, device, vkGetDeviceProcAddr, pipeline, job->isa_file);
  fputs("]}\n", out);
}
