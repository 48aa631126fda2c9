// What the parts of the program share: main.c hands out pipelines to processes, device.c finds the GPU's device, compile.c
// gives it a pipeline.
#pragma once

#define _GNU_SOURCE
#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define INSTANCE_CALL(instance, name) PFN_##name name = (PFN_##name)vkGetInstanceProcAddr(instance, #name)
#define DEVICE_CALL(device, name) PFN_##name name = (PFN_##name)vkGetDeviceProcAddr(device, #name)

extern PFN_vkGetInstanceProcAddr vkGetInstanceProcAddr;

enum { kMaxExtensions = 32 };

// The device that is there, and what it is to be created with.
struct Offer {
  VkInstance instance;
  VkPhysicalDevice physical;
  VkPhysicalDeviceFeatures2 features;  // with what is offered of the features that vkconv uses behind it
  const char* extensions[kMaxExtensions];
  uint32_t extension_count;
  bool statistics;
};

// A pipeline to compile, as a line of stdin has it.
struct Job {
  const char *id, *spirv_file, *isa_file;
  double seconds;
  const char* kinds;  // of bindings, a letter each; NULL where all are storage buffers
  uint32_t bindings, push_bytes, subgroup_size;
  uint32_t* words;
  uint32_t word_count;
};

double seconds_of(clockid_t clock);            // what it shows
void put_text(FILE* out, const char* text);    // as a JSON string
void fail(const char* call, int result);       // tells on stdout what is wrong, and ends the process
void find_device(struct Offer* offer);         // and prints what it is
void compile(FILE* out, const struct Offer* offer, const struct Job* job);  // prints what came of it
