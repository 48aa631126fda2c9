// A libvulkan.so.1 that stands before the real one and fails as drivers do. VKCONV_FAULT is WHAT:N:FILE: with the N-th
// pipeline of a process it begins to `crash`, to `hang` or to be `lost`; `gone` is lost and, as FILE tells later
// processes, never opens again.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vulkan.h>

static char what[16], file[512];
static int first, pipelines, lost;
static void *real;
static PFN_vkGetInstanceProcAddr instance_proc;
static PFN_vkGetDeviceProcAddr device_proc;
static PFN_vkCreateComputePipelines create_pipelines;
static PFN_vkQueueSubmit submit;
static PFN_vkCreateDevice create_device;

static VKAPI_ATTR VkResult VKAPI_CALL faulty_pipelines(VkDevice device, VkPipelineCache cache, uint32_t count,
                                                       const VkComputePipelineCreateInfo *infos,
                                                       const VkAllocationCallbacks *allocator, VkPipeline *made) {
  if (++pipelines == first) {
    if (!strcmp(what, "crash")) raise(SIGSEGV);
    if (!strcmp(what, "hang")) sleep(1000);
    lost = 1;
    if (!strcmp(what, "gone")) fclose(fopen(file, "w"));
  }
  return create_pipelines(device, cache, count, infos, allocator, made);
}

static VKAPI_ATTR VkResult VKAPI_CALL faulty_submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
  return lost ? VK_ERROR_DEVICE_LOST : submit(queue, count, infos, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL faulty_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator, VkDevice *made) {
  if (!access(file, F_OK)) return VK_ERROR_INITIALIZATION_FAILED;
  return create_device(physical, info, allocator, made);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL of_device(VkDevice device, const char *name) {
  const PFN_vkVoidFunction found = device_proc(device, name);
  if (!strcmp(name, "vkCreateComputePipelines")) return create_pipelines = (void *)found, (void *)faulty_pipelines;
  if (!strcmp(name, "vkQueueSubmit")) return submit = (void *)found, (void *)faulty_submit;
  return found;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name) {
  if (!real) {
    if (sscanf(getenv("VKCONV_FAULT"), "%15[^:]:%d:%511s", what, &first, file) != 3) abort();
    real = dlopen(getenv("VKCONV_REAL_LOADER"), RTLD_NOW | RTLD_LOCAL);
    if (!real) abort();
    instance_proc = (PFN_vkGetInstanceProcAddr)dlsym(real, "vkGetInstanceProcAddr");
  }
  const PFN_vkVoidFunction found = instance_proc(instance, name);
  if (!strcmp(name, "vkGetDeviceProcAddr")) return device_proc = (void *)found, (void *)of_device;
  if (!strcmp(name, "vkCreateDevice")) return create_device = (void *)found, (void *)faulty_device;
  return found;
}
