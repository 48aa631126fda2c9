// Plays a folder that `vkconv pack` wrote, on a device where vkconv itself does not run, and compares what comes out.
//
//   c++ -O2 -std=c++17 player.cpp -lvulkan -o player
//   ./player DIR [RUNS [DEVICE]]        DEVICE: its place in Vulkan's list, 0 without
//
// One file, so that there is one to carry to the device and nothing to set up for its build.
// The folder comes from someone you trust: its shaders run as they are.
// Writes each output as DIR/got_N.bin. Exit code 0: near the expected values and the same in every run; 1: not so;
// 2: this device or this folder cannot be played.
#include <vulkan/vulkan.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Bytes = std::vector<char>;

// Of one pipeline, whatever a device allows: a number in a plan must not decide how much memory its line takes.
constexpr uint32_t kMostBindings = 256, kMostSpec = 256, kMostPush = 4096;
constexpr double kFar = 1e-2;  // of the largest expected magnitude: a coarse sieve, a whole model has no sharper bound

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

void check(VkResult result, const char* what) {
  if (result != VK_SUCCESS) fail(std::string(what) + ": VkResult " + std::to_string(result));
}

Bytes read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ---- the folder

struct Region { uint32_t buffer; uint64_t offset, nbytes; };
struct BufferLine { std::string kind; uint64_t nbytes; };
struct PipelineLine {
  std::string file;
  uint32_t bindings, push_bytes;
  std::vector<uint32_t> spec;
  uint32_t subgroup_size = 0;  // 0: as the driver likes
};
struct ValueLine { Region at; Bytes bytes; std::string dtype, label; };
struct Command {
  enum Kind { Dispatch, Copy, Barrier } kind;
  uint32_t pipeline = 0, groups[3] = {};
  Bytes push;
  std::vector<Region> regions;
};
struct Plan {
  std::vector<std::pair<std::string, uint64_t>> needs;
  std::vector<BufferLine> buffers;
  std::vector<PipelineLine> pipelines;
  std::vector<ValueLine> inputs, expected, weights;
  std::vector<Command> load, run;
};

Region region(std::istream& words) {
  Region r{};
  words >> r.buffer >> r.offset >> r.nbytes;
  return r;
}

Bytes unhex(const std::string& text) {
  Bytes bytes;
  for (size_t i = 0; text != "-" && i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

Command command(const std::string& word, std::istream& words, const Plan& plan) {
  Command c{word == "copy" ? Command::Copy : word == "barrier" ? Command::Barrier : Command::Dispatch};
  size_t regions = c.kind == Command::Copy ? 2 : 0;
  if (c.kind == Command::Dispatch) {
    std::string push;
    words >> c.pipeline >> c.groups[0] >> c.groups[1] >> c.groups[2] >> push;
    c.push = unhex(push);
    if (c.pipeline >= plan.pipelines.size()) fail("no pipeline " + std::to_string(c.pipeline));
    regions = plan.pipelines[c.pipeline].bindings;
    if (c.push.size() != plan.pipelines[c.pipeline].push_bytes) fail("push constants of the wrong size");
  }
  while (regions-- && words) c.regions.push_back(region(words));
  return c;
}

Plan parse(const std::string& folder) {
  std::ifstream file(folder + "/plan.txt");
  std::string line, word, name;
  if (!std::getline(file, line) || line != "vkconv-pack 1") fail(folder + "/plan.txt is no plan of version 1");
  Plan plan;
  std::vector<Command>* phase = nullptr;
  while (std::getline(file, line)) {
    std::istringstream words(line.substr(0, line.find(" # ")));
    if (!(words >> word) || word == "#") continue;
    if (word == "end") return plan;
    if (word == "needs") {
      uint64_t value = 0;
      words >> name >> value;
      plan.needs.emplace_back(name, value);
    } else if (word == "buffer") {
      BufferLine b{};
      words >> name >> b.kind >> b.nbytes;
      plan.buffers.push_back(b);
    } else if (word == "pipeline") {
      PipelineLine p{};
      size_t count = 0;
      words >> name >> p.file >> p.bindings >> p.push_bytes >> count;
      if (count > kMostSpec || p.bindings > kMostBindings || p.push_bytes > kMostPush) fail("bad line: " + line);
      p.spec.resize(count);
      for (uint32_t& value : p.spec) words >> value;
      plan.pipelines.push_back(p);
    } else if (word == "subgroup") {
      size_t number = 0;
      words >> number;
      if (number >= plan.pipelines.size()) fail("no pipeline " + std::to_string(number));
      words >> plan.pipelines[number].subgroup_size;
    } else if (word == "input" || word == "expected" || word == "weights") {
      ValueLine value{};
      value.at = region(words);
      words >> name;
      value.bytes = read(folder + "/" + name);
      if (word != "weights") words >> value.dtype >> value.label;
      const size_t mark = line.find(" # ");
      if (mark != std::string::npos) value.label = line.substr(mark + 3) + " " + value.label;
      if (value.bytes.size() > value.at.nbytes) fail(name + " is larger than its place");
      (word == "input" ? plan.inputs : word == "expected" ? plan.expected : plan.weights).push_back(std::move(value));
    } else if (word == "load" || word == "run") {
      phase = word == "load" ? &plan.load : &plan.run;
    } else if (phase && (word == "dispatch" || word == "copy" || word == "barrier")) {
      phase->push_back(command(word, words, plan));
    } else {
      fail("unknown line: " + line);
    }
    if (words.fail()) fail("bad line: " + line);
  }
  fail(folder + "/plan.txt ends early");
}

// ---- the device

struct Buffer { VkBuffer buffer = VK_NULL_HANDLE; char* mapped = nullptr; uint64_t nbytes = 0; };
struct Pipeline { VkDescriptorSetLayout set; VkPipelineLayout layout; VkPipeline pipeline; };

// What the process made lives as long as the process.
struct Player {
  VkPhysicalDevice physical{};
  VkDevice device{};
  VkQueue queue{};
  uint32_t family = 0;
  VkCommandPool pool{};
  std::vector<Buffer> buffers;
  std::vector<Pipeline> pipelines;
  uint32_t least_subgroup = 0, most_subgroup = 0;  // that a pipeline may ask for
  uint64_t most_subgroups = 0;                     // of a workgroup then

  explicit Player(size_t index) {
    VkApplicationInfo app{VK_STRUCTURE_TYPE_APPLICATION_INFO};
    app.apiVersion = VK_API_VERSION_1_1;
    VkInstanceCreateInfo instance_info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
    instance_info.pApplicationInfo = &app;
    VkInstance instance{};
    check(vkCreateInstance(&instance_info, nullptr, &instance), "vkCreateInstance");
    uint32_t count = 0;
    vkEnumeratePhysicalDevices(instance, &count, nullptr);
    std::vector<VkPhysicalDevice> all(count);
    vkEnumeratePhysicalDevices(instance, &count, all.data());
    if (index >= all.size()) fail("no Vulkan device " + std::to_string(index));
    physical = all[index];
    vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, nullptr);
    std::vector<VkQueueFamilyProperties> families(count);
    vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families.data());
    while (family < count && !(families[family].queueFlags & VK_QUEUE_COMPUTE_BIT)) ++family;
    if (family == count) fail("the device has no compute queue");
    make_device();
    vkGetDeviceQueue(device, family, 0, &queue);
    VkCommandPoolCreateInfo pool_info{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    pool_info.queueFamilyIndex = family;
    check(vkCreateCommandPool(device, &pool_info, nullptr, &pool), "vkCreateCommandPool");
  }

  // Atomic adds of floats and pipelines that ask for a subgroup size are all that plans use outside core Vulkan 1.1, and
  // only where the device file has them.
  void make_device() {
    uint32_t count = 0;
    vkEnumerateDeviceExtensionProperties(physical, nullptr, &count, nullptr);
    std::vector<VkExtensionProperties> extensions(count);
    vkEnumerateDeviceExtensionProperties(physical, nullptr, &count, extensions.data());
    const auto offers = [&](const char* name) {
      return std::any_of(extensions.begin(), extensions.end(),
                         [&](const VkExtensionProperties& e) { return !std::strcmp(e.extensionName, name); });
    };
    const bool atomics = offers(VK_EXT_SHADER_ATOMIC_FLOAT_EXTENSION_NAME);
    const bool sizes = offers(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    VkPhysicalDeviceShaderAtomicFloatFeaturesEXT have{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT};
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT sized{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT};
    VkPhysicalDeviceFeatures2 features{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, nullptr, {}};
    if (atomics) features.pNext = &have;
    if (sizes) sized.pNext = features.pNext, features.pNext = &sized;
    vkGetPhysicalDeviceFeatures2(physical, &features);
    VkPhysicalDeviceShaderAtomicFloatFeaturesEXT want{have.sType};
    want.shaderBufferFloat32Atomics = have.shaderBufferFloat32Atomics;
    want.shaderBufferFloat32AtomicAdd = have.shaderBufferFloat32AtomicAdd;
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT want_sizes{sized.sType};
    want_sizes.subgroupSizeControl = sized.subgroupSizeControl;
    if (sizes && sized.subgroupSizeControl) {
      VkPhysicalDeviceSubgroupSizeControlPropertiesEXT range{
          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT};
      VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &range, {}};
      vkGetPhysicalDeviceProperties2(physical, &properties);
      if (range.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) {
        least_subgroup = range.minSubgroupSize;
        most_subgroup = range.maxSubgroupSize;
        most_subgroups = range.maxComputeWorkgroupSubgroups;
      }
    }
    if (atomics) want_sizes.pNext = &want;
    const float priority = 1;
    VkDeviceQueueCreateInfo queue_info{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
    queue_info.queueFamilyIndex = family;
    queue_info.queueCount = 1;
    queue_info.pQueuePriorities = &priority;
    std::vector<const char*> names;
    if (atomics) names.push_back(VK_EXT_SHADER_ATOMIC_FLOAT_EXTENSION_NAME);
    if (sizes) names.push_back(VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    VkDeviceCreateInfo info{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
    info.pNext = sizes ? static_cast<const void*>(&want_sizes) : atomics ? &want : nullptr;
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queue_info;
    info.enabledExtensionCount = static_cast<uint32_t>(names.size());
    info.ppEnabledExtensionNames = names.data();
    check(vkCreateDevice(physical, &info, nullptr, &device), "vkCreateDevice");
  }

  void require(const Plan& plan) {
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(physical, &properties);
    std::printf("%s, driver 0x%x, Vulkan %u.%u.%u\n", properties.deviceName, properties.driverVersion,
                VK_VERSION_MAJOR(properties.apiVersion), VK_VERSION_MINOR(properties.apiVersion),
                VK_VERSION_PATCH(properties.apiVersion));
    const VkPhysicalDeviceLimits& l = properties.limits;
    for (const auto& [name, value] : plan.needs) {
      const bool met = name == "minStorageBufferOffsetAlignment" ? value % l.minStorageBufferOffsetAlignment == 0
                       : name == "maxPushConstantsSize"          ? value <= l.maxPushConstantsSize
                       : name == "maxStorageBufferRange"         ? value <= l.maxStorageBufferRange
                       : name == "maxComputeWorkGroupInvocations" ? value <= l.maxComputeWorkGroupInvocations
                       : name == "maxPerStageDescriptorStorageBuffers"
                           ? value <= l.maxPerStageDescriptorStorageBuffers
                           : false;
      if (!met) fail("the plan needs " + name + " " + std::to_string(value) + ", which this device does not have");
    }
  }

  void add_buffer(const BufferLine& line) {
    Buffer made;
    made.nbytes = std::max<uint64_t>(line.nbytes, 4);
    VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    info.size = made.nbytes;
    info.usage =
        VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    check(vkCreateBuffer(device, &info, nullptr, &made.buffer), "vkCreateBuffer");
    VkMemoryRequirements requirements;
    vkGetBufferMemoryRequirements(device, made.buffer, &requirements);
    const bool host = line.kind != "device";
    VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    allocate.allocationSize = requirements.size;
    allocate.memoryTypeIndex = memory_type(
        requirements.memoryTypeBits, host ? VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
                                          : VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    VkDeviceMemory memory{};
    check(vkAllocateMemory(device, &allocate, nullptr, &memory), "vkAllocateMemory");
    check(vkBindBufferMemory(device, made.buffer, memory, 0), "vkBindBufferMemory");
    void* mapped = nullptr;
    if (host) check(vkMapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, &mapped), "vkMapMemory");
    made.mapped = static_cast<char*>(mapped);
    buffers.push_back(made);
  }

  uint32_t memory_type(uint32_t allowed, VkMemoryPropertyFlags wanted) {
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(physical, &memory);
    for (uint32_t i = 0; i < memory.memoryTypeCount; ++i)
      if ((allowed >> i & 1) && (memory.memoryTypes[i].propertyFlags & wanted) == wanted) return i;
    fail("no memory type fits");
  }

  void add_pipeline(const PipelineLine& line, const std::string& folder) {
    atmost("bindings", line.bindings, limits().maxPerStageDescriptorStorageBuffers);
    atmost("bytes of push constants", line.push_bytes, limits().maxPushConstantsSize);
    if (line.push_bytes % 4) fail("push constants are not whole words");
    Pipeline made{};
    std::vector<VkDescriptorSetLayoutBinding> bindings(line.bindings);
    for (uint32_t i = 0; i < line.bindings; ++i)
      bindings[i] = {i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
    VkDescriptorSetLayoutCreateInfo set_info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    set_info.bindingCount = line.bindings;
    set_info.pBindings = bindings.data();
    check(vkCreateDescriptorSetLayout(device, &set_info, nullptr, &made.set), "vkCreateDescriptorSetLayout");
    const VkPushConstantRange push{VK_SHADER_STAGE_COMPUTE_BIT, 0, line.push_bytes};
    VkPipelineLayoutCreateInfo layout_info{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    layout_info.setLayoutCount = 1;
    layout_info.pSetLayouts = &made.set;
    layout_info.pushConstantRangeCount = line.push_bytes > 0;
    layout_info.pPushConstantRanges = &push;
    check(vkCreatePipelineLayout(device, &layout_info, nullptr, &made.layout), "vkCreatePipelineLayout");
    const Bytes code = read(folder + "/" + line.file);
    std::vector<uint32_t> words(code.size() / 4);
    std::memcpy(words.data(), code.data(), words.size() * 4);
    VkShaderModuleCreateInfo module_info{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
    module_info.codeSize = words.size() * 4;
    module_info.pCode = words.data();
    VkShaderModule module{};
    check(vkCreateShaderModule(device, &module_info, nullptr, &module), "vkCreateShaderModule");
    std::vector<VkSpecializationMapEntry> entries;
    for (uint32_t i = 0; i < line.spec.size(); ++i) entries.push_back({i, 4 * i, 4});
    const VkSpecializationInfo spec{static_cast<uint32_t>(entries.size()), entries.data(), 4 * line.spec.size(),
                                    line.spec.data()};
    VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    info.stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO};
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &spec;
    info.layout = made.layout;
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT sized{
        VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO_EXT};
    sized.requiredSubgroupSize = line.subgroup_size;
    if (line.subgroup_size != 0) {
      if (line.subgroup_size < least_subgroup || line.subgroup_size > most_subgroup ||
          (line.subgroup_size & (line.subgroup_size - 1)) != 0)
        fail(line.file + " asks for subgroups of " + std::to_string(line.subgroup_size) + "; the device has " +
             std::to_string(least_subgroup) + " to " + std::to_string(most_subgroup) + " for a pipeline to ask for");
      uint64_t local = 1;
      for (size_t i = 0; i < 3 && i < line.spec.size(); ++i) local *= line.spec[i];
      if (local > most_subgroups * line.subgroup_size)
        fail(line.file + " has workgroups of " + std::to_string(local) + " and asks for subgroups of " +
             std::to_string(line.subgroup_size) + "; the device has " + std::to_string(most_subgroups) + " of them at most");
      info.stage.pNext = &sized;
    }
    check(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, nullptr, &made.pipeline), line.file.c_str());
    pipelines.push_back(made);
  }

  VkPhysicalDeviceLimits limits() const {
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(physical, &properties);
    return properties.limits;
  }

  static void atmost(const char* what, uint64_t wanted, uint64_t most) {
    if (wanted > most)
      fail("the plan has " + std::to_string(wanted) + " " + what + ", and this device takes " + std::to_string(most));
  }

  const Buffer& at(const Region& r) const {
    if (r.buffer >= buffers.size() || r.offset > buffers[r.buffer].nbytes ||
        r.nbytes > buffers[r.buffer].nbytes - r.offset)
      fail("a region lies outside of its buffer");
    return buffers[r.buffer];
  }

  char* host(const Region& r) const {
    if (!at(r).mapped) fail("the host cannot reach a buffer of kind device");
    return at(r).mapped + r.offset;
  }

  VkCommandBuffer record(const std::vector<Command>& commands) {
    VkCommandBufferAllocateInfo allocate{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, pool,
                                         VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
    VkCommandBuffer buffer{};
    check(vkAllocateCommandBuffers(device, &allocate, &buffer), "vkAllocateCommandBuffers");
    VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    check(vkBeginCommandBuffer(buffer, &begin), "vkBeginCommandBuffer");
    const VkDescriptorPool sets = descriptors(commands);
    for (const Command& c : commands) {
      if (c.kind == Command::Barrier) {
        barrier(buffer, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                    VK_ACCESS_TRANSFER_WRITE_BIT);
      } else if (c.kind == Command::Copy) {
        const VkBufferCopy copy{c.regions[0].offset, c.regions[1].offset, c.regions[0].nbytes};
        if (c.regions[0].nbytes != c.regions[1].nbytes) fail("a copy between places of different size");
        vkCmdCopyBuffer(buffer, at(c.regions[0]).buffer, at(c.regions[1]).buffer, 1, &copy);
      } else {
        dispatch(buffer, sets, c);
      }
    }
    barrier(buffer, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
    check(vkEndCommandBuffer(buffer), "vkEndCommandBuffer");
    return buffer;
  }

  VkDescriptorPool descriptors(const std::vector<Command>& commands) {
    uint32_t sets = 0, count = 0;
    for (const Command& c : commands)
      if (c.kind == Command::Dispatch) ++sets, count += static_cast<uint32_t>(c.regions.size());
    VkDescriptorPool made{};
    if (!sets) return made;
    const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, count};
    VkDescriptorPoolCreateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, nullptr, 0, sets, 1, &size};
    check(vkCreateDescriptorPool(device, &info, nullptr, &made), "vkCreateDescriptorPool");
    return made;
  }

  void barrier(VkCommandBuffer buffer, VkPipelineStageFlags stages, VkAccessFlags accesses) {
    const VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr,
                                 VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, accesses};
    vkCmdPipelineBarrier(buffer, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT, stages, 0, 1,
                         &memory, 0, nullptr, 0, nullptr);
  }

  void dispatch(VkCommandBuffer buffer, VkDescriptorPool sets, const Command& c) {
    const Pipeline& p = pipelines[c.pipeline];
    VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, nullptr, sets, 1, &p.set};
    VkDescriptorSet set{};
    check(vkAllocateDescriptorSets(device, &info, &set), "vkAllocateDescriptorSets");
    std::vector<VkDescriptorBufferInfo> places;
    const VkPhysicalDeviceLimits most = limits();
    for (const Region& r : c.regions) {
      atmost("bytes in a binding", r.nbytes, most.maxStorageBufferRange);
      if (!r.nbytes || r.offset % most.minStorageBufferOffsetAlignment) fail("a binding of no bytes, or at a bad offset");
      places.push_back({at(r).buffer, r.offset, r.nbytes});
    }
    for (int axis = 0; axis < 3; ++axis) atmost("workgroups on an axis", c.groups[axis], most.maxComputeWorkGroupCount[axis]);
    VkWriteDescriptorSet write{VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = set;
    write.descriptorCount = static_cast<uint32_t>(places.size());
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo = places.data();
    vkUpdateDescriptorSets(device, 1, &write, 0, nullptr);
    vkCmdBindPipeline(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, p.pipeline);
    vkCmdBindDescriptorSets(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, p.layout, 0, 1, &set, 0, nullptr);
    if (!c.push.empty())
      vkCmdPushConstants(buffer, p.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, static_cast<uint32_t>(c.push.size()),
                         c.push.data());
    vkCmdDispatch(buffer, c.groups[0], c.groups[1], c.groups[2]);
  }

  void submit(VkCommandBuffer buffer) {
    VkSubmitInfo info{VK_STRUCTURE_TYPE_SUBMIT_INFO};
    info.commandBufferCount = 1;
    info.pCommandBuffers = &buffer;
    check(vkQueueSubmit(queue, 1, &info, VK_NULL_HANDLE), "vkQueueSubmit");
    check(vkQueueWaitIdle(queue), "vkQueueWaitIdle");
  }
};

// ---- what came out

template <typename T>
T word(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::vector<double> numbers(const Bytes& bytes, const std::string& dtype) {
  const size_t width = dtype == "i64"                                         ? 8
                       : dtype == "f32" || dtype == "i32" || dtype == "u32"   ? 4
                       : dtype == "i8" || dtype == "u8" || dtype == "bool"    ? 1
                                                                              : 0;
  if (!width) fail("this player does not read elements of type " + dtype);
  std::vector<double> all;
  for (size_t i = 0; i + width <= bytes.size(); i += width) {
    const char* p = bytes.data() + i;
    all.push_back(dtype == "f32"   ? word<float>(p)
                  : dtype == "i64" ? static_cast<double>(word<int64_t>(p))
                  : dtype == "i32" ? word<int32_t>(p)
                  : dtype == "u32" ? word<uint32_t>(p)
                  : dtype == "i8"  ? word<int8_t>(p)
                                   : word<uint8_t>(p));
  }
  return all;
}

bool compare(const ValueLine& expected, const Bytes& got) {
  const std::vector<double> want = numbers(expected.bytes, expected.dtype), have = numbers(got, expected.dtype);
  double worst = 0, largest = 0;
  size_t where = 0, odd = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == have[i] || (std::isnan(want[i]) && std::isnan(have[i]))) {
      if (std::isfinite(want[i])) largest = std::max(largest, std::fabs(want[i]));
    } else if (!std::isfinite(want[i]) || !std::isfinite(have[i])) {
      if (!odd++ && worst == 0) where = i;
    } else {
      largest = std::max(largest, std::fabs(want[i]));
      if (std::fabs(want[i] - have[i]) > worst) worst = std::fabs(want[i] - have[i]), where = i;
    }
  }
  const bool near = !odd && worst <= kFar * largest;
  std::printf("%s: %s, largest error %.3g, largest expected magnitude %.3g", expected.label.c_str(),
              near ? "near" : "FAR OFF", worst, largest);
  if (odd) std::printf(", %zu elements where only one is finite", odd);
  if (worst > 0 || odd) std::printf("; element %zu is %.9g, expected %.9g", where, have[where], want[where]);
  std::printf("\n");
  return near;
}

int play(const std::string& folder, int runs, size_t index) {
  const Plan plan = parse(folder);
  Player player(index);
  player.require(plan);
  for (const BufferLine& line : plan.buffers) player.add_buffer(line);
  for (const PipelineLine& line : plan.pipelines) player.add_pipeline(line, folder);
  for (const ValueLine& w : plan.weights) std::copy(w.bytes.begin(), w.bytes.end(), player.host(w.at));
  player.submit(player.record(plan.load));
  const VkCommandBuffer commands = player.record(plan.run);
  std::vector<Bytes> first;
  int changed = 0;
  double shortest = INFINITY;
  for (int run = 0; run < runs; ++run) {
    for (const ValueLine& in : plan.inputs) std::copy(in.bytes.begin(), in.bytes.end(), player.host(in.at));
    const auto start = std::chrono::steady_clock::now();
    player.submit(commands);
    shortest = std::min(shortest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    std::vector<Bytes> outputs;
    for (const ValueLine& out : plan.expected)
      outputs.emplace_back(player.host(out.at), player.host(out.at) + out.bytes.size());
    if (run == 0) first = outputs;
    changed += outputs != first;
  }
  bool good = changed == 0;
  for (size_t i = 0; i < first.size(); ++i) {
    std::ofstream(folder + "/got_" + std::to_string(i) + ".bin", std::ios::binary).write(first[i].data(), first[i].size());
    good &= compare(plan.expected[i], first[i]);
  }
  std::printf("%d of %d runs differ from the first; the shortest took %.3f ms\n", changed, runs, 1e3 * shortest);
  return good ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  if (count < 2 || count > 4) return std::fprintf(stderr, "usage: %s DIR [RUNS [DEVICE]]\n", words[0]), 2;
  try {
    const int runs = count > 2 ? std::stoi(words[2]) : 1;
    return play(words[1], std::max(runs, 1), count > 3 ? std::stoul(words[3]) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
