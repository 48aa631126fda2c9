#include "pack.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <new>

#include "sha256.hpp"

namespace player {
namespace {

constexpr uint32_t kPoison = 0x7FC00001;  // no number in f32, nor, in its upper half, in 16-bit floats
constexpr size_t kNamed = 32;             // hex digits of the hash in a file's name
constexpr VkPipelineStageFlags kWork = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
constexpr VkImageLayout kRest = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL;  // of textures between recordings
constexpr VkAccessFlags kAll = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Refused("cannot read " + path);
  Bytes bytes;
  char block[1 << 16];
  while (file.read(block, sizeof block), file.gcount() > 0) bytes.insert(bytes.end(), block, block + file.gcount());
  if (file.bad()) throw Refused("cannot read all of " + path);
  return bytes;
}

std::vector<double> doubles(const Bytes& bytes, uint64_t count, const std::string& name) {
  if (bytes.size() != count * sizeof(double))
    throw Refused(name + " has " + std::to_string(bytes.size()) + " bytes, and not " + std::to_string(count) + " elements of f64");
  std::vector<double> made(count);
  std::memcpy(made.data(), bytes.data(), bytes.size());
  return made;
}

}  // namespace

Bytes Folder::read(const std::string& name) const {
  Bytes bytes = read_file(path_ + "/" + name);
  const std::string stem = name.substr(name.rfind('/') + 1), hash = sha256_hex(bytes.data(), bytes.size());
  if (stem.compare(0, kNamed, hash, 0, kNamed) != 0)
    throw Refused(name + " is damaged: its SHA-256 begins with " + hash.substr(0, kNamed) + ", and its name says otherwise");
  return bytes;
}

Index Folder::index() const {
  const Bytes bytes = read_file(path_ + "/index.txt");
  try {
    return parse_index({bytes.begin(), bytes.end()});
  } catch (const Refused& error) {
    throw Refused(path_ + "/index.txt: " + error.what());
  }
}

Plan Folder::plan(const std::string& name) const {
  const Bytes bytes = read(name);
  try {
    return parse_plan({bytes.begin(), bytes.end()});
  } catch (const Refused& error) {
    throw Refused(name + ": " + error.what());
  }
}

Wanted Folder::wanted(const Check& check, const Tensor& output) const {
  Wanted made;
  made.expected = doubles(read(check.expected), output.count, check.expected);
  made.uniform = check.shown ? INFINITY : check.uniform;
  if (!check.allowed.empty()) made.allowed = doubles(read(check.allowed), output.count, check.allowed);
  if (!check.overflow.empty()) made.overflow = read(check.overflow);
  if (!made.overflow.empty() && made.overflow.size() != output.count) throw Refused(check.overflow + " has another number of elements than its output");
  made.relative = check.relative;
  made.floor = check.floor;
  return made;
}

Pack::Pack(Device& device, const Folder& folder, Plan given, const Tell& tell, uint64_t limit_ns, bool cached)
    : plan(std::move(given)), device_(device), folder_(folder), limit_ns_(limit_ns) {
  device_.require(plan);
  try {
    std::map<std::string, Bytes> codes;
    for (const PipelineLine& line : plan.pipelines)
      if (!codes.count(line.file)) codes[line.file] = folder_.read(line.file);
    tell("run", "allocating " + std::to_string(plan.buffer_bytes()) + " bytes");
    for (const BufferLine& line : plan.buffers)
      buffers_.push_back(line.texels.empty() ? device_.buffer(line.nbytes, line.kind) : device_.texture(line));
    for (const PipelineLine& line : plan.pipelines) {
      tell("compile", line.name.empty() ? line.file : line.name);
      pipelines_.push_back(device_.pipeline(line, codes[line.file], cached));
      compile_us += pipelines_.back().compile_us;
    }
    tell("run", plan.label);
    for (const Tensor& weights : plan.weights) {
      const Bytes bytes = folder_.read(weights.file);
      if (bytes.size() > weights.at.nbytes) throw Refused(weights.file + " is larger than its place");
      std::copy(bytes.begin(), bytes.end(), buffers_[weights.at.buffer].mapped + weights.at.offset);
    }
    for (size_t i = 0; i < plan.inputs.size(); ++i) input(i, folder_.read(plan.inputs[i].file));
    poison();
    load();
    run_ = record(plan.run, 0);
  } catch (...) {
    release();
    throw;
  }
}

Pack::~Pack() {
  try {
    release();
  } catch (const Failed&) {  // the device is lost, as the next one who uses it will tell
  } catch (const std::bad_alloc&) {  // for the words of that
  }
}

void Pack::release() {
  if (device_.dead) return;
  device_.wait();
  for (Recording& recording : made_) {
    if (recording.buffer) device_.release(recording.buffer);
    if (recording.sets) vk.vkDestroyDescriptorPool(device_.handle(), recording.sets, nullptr);
    if (recording.queries) vk.vkDestroyQueryPool(device_.handle(), recording.queries, nullptr);
  }
  made_.clear();
  for (Pipeline& pipeline : pipelines_) device_.release(pipeline);
  for (Buffer& buffer : buffers_) device_.release(buffer);
  pipelines_.clear();
  buffers_.clear();
}

void Pack::input(size_t number, const Bytes& bytes) {
  const Tensor& tensor = plan.inputs[number];
  if (bytes.size() != tensor.count * width_of(tensor.dtype)) throw Refused("input " + tensor.name + " has " + std::to_string(bytes.size()) + " bytes, not those of its shape");
  std::copy(bytes.begin(), bytes.end(), buffers_[tensor.at.buffer].mapped + tensor.at.offset);
}

void Pack::load() {
  if (plan.load.empty()) return;
  const Recording recording = record(plan.load, device_.timestamp_bits ? 1 : 0);
  double wall_us = 0;
  const std::vector<double> spans = submit(recording, &wall_us);
  size_t place = 0;
  for (const Command& command : plan.load) {
    if (command.kind == Command::Kind::Barrier) continue;
    if (command.kind == Command::Kind::Dispatch && place < spans.size()) prepack_us = std::max(prepack_us, 0.0) + spans[place];
    ++place;
  }
}

void Pack::poison() {
  std::vector<bool> kept(buffers_.size());
  for (const Command& command : plan.load) {
    // Whatever loading may write stays: a dispatch does not say which of its places those are.
    for (const Region& r : command.regions) kept[r.buffer] = !made_.empty();
  }
  const VkCommandBuffer buffer = device_.commands();
  const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, nullptr};
  check(vk.vkBeginCommandBuffer(buffer, &begin), "vkBeginCommandBuffer");
  for (size_t i = 0; i < buffers_.size(); ++i)
    if (plan.buffers[i].kind != Kind::Upload && !kept[i] && buffers_[i].buffer) vk.vkCmdFillBuffer(buffer, buffers_[i].buffer, 0, VK_WHOLE_SIZE, kPoison);
  for (uint32_t i = 0; i < buffers_.size(); ++i) {
    if (!buffers_[i].image || kept[i]) continue;
    VkClearColorValue color{};
    for (float& channel : color.float32) channel = NAN;
    const VkImageSubresourceRange all{VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
    transition(buffer, i, VK_IMAGE_LAYOUT_GENERAL);
    vk.vkCmdClearColorImage(buffer, buffers_[i].image, VK_IMAGE_LAYOUT_GENERAL, &color, 1, &all);
  }
  rest(buffer);
  barrier(buffer, kWork, kAll);
  check(vk.vkEndCommandBuffer(buffer), "vkEndCommandBuffer");
  device_.submit(buffer, limit_ns_);
  device_.release(buffer);
}

void Pack::run() { submit(run_, nullptr); }

Bytes Pack::output(size_t number) const {
  const Tensor& tensor = plan.outputs[number];
  const char* from = buffers_[tensor.at.buffer].mapped + tensor.at.offset;
  return {from, from + tensor.count * width_of(tensor.dtype)};
}

Bytes Pack::value(size_t number) {
  const Tensor& tensor = plan.values[number];
  Bytes bytes(tensor.count * width_of(tensor.dtype));
  if (bytes.empty()) return bytes;
  Buffer host = device_.buffer(bytes.size(), Kind::Download);
  const VkCommandBuffer buffer = device_.commands();
  const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, nullptr};
  check(vk.vkBeginCommandBuffer(buffer, &begin), "vkBeginCommandBuffer");
  barrier(buffer, kWork, kAll);
  const VkBufferCopy copy{tensor.at.offset, 0, bytes.size()};
  vk.vkCmdCopyBuffer(buffer, buffers_[tensor.at.buffer].buffer, host.buffer, 1, &copy);
  barrier(buffer, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
  check(vk.vkEndCommandBuffer(buffer), "vkEndCommandBuffer");
  device_.submit(buffer, limit_ns_);
  device_.release(buffer);
  std::memcpy(bytes.data(), host.mapped, bytes.size());
  device_.release(host);
  return bytes;
}

Recording Pack::record(const std::vector<Command>& commands, size_t every) {
  Recording made;
  uint32_t sets = 0, work = 0;
  std::map<char, uint32_t> bindings;
  for (const Command& c : commands) {
    work += c.kind != Command::Kind::Barrier;
    if (c.kind != Command::Kind::Dispatch) continue;
    ++sets;
    for (size_t i = 0; i < c.regions.size(); ++i) ++bindings[plan.pipelines[c.pipeline].kind(i)];
  }
  if (sets) {
    std::vector<VkDescriptorPoolSize> sizes;
    for (const auto& [kind, count] : bindings) sizes.push_back({descriptor_type(kind), count});
    if (sizes.empty()) sizes.push_back({VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1});
    const VkDescriptorPoolCreateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, nullptr, 0, sets, static_cast<uint32_t>(sizes.size()), sizes.data()};
    check(vk.vkCreateDescriptorPool(device_.handle(), &info, nullptr, &made.sets), "vkCreateDescriptorPool");
  }
  made_.push_back(made);
  if (every && device_.timestamp_bits) {
    made.stamps = static_cast<uint32_t>(work / every + 1);
    const VkQueryPoolCreateInfo info{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, nullptr, 0, VK_QUERY_TYPE_TIMESTAMP, made.stamps, 0};
    check(vk.vkCreateQueryPool(device_.handle(), &info, nullptr, &made.queries), "vkCreateQueryPool");
    made_.back() = made;
  }
  made.buffer = device_.commands();
  made_.back() = made;
  const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr, 0, nullptr};
  check(vk.vkBeginCommandBuffer(made.buffer, &begin), "vkBeginCommandBuffer");
  uint32_t stamp = 0;
  const auto stamped = [&] {
    if (stamp < made.stamps) vk.vkCmdWriteTimestamp(made.buffer, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, made.queries, stamp++);
  };
  if (made.stamps) vk.vkCmdResetQueryPool(made.buffer, made.queries, 0, made.stamps);
  // Whatever ran before on these buffers comes first.
  barrier(made.buffer, kWork, kAll);
  stamped();
  size_t done = 0;
  for (const Command& c : commands) {
    if (c.kind == Command::Kind::Barrier) {
      barrier(made.buffer, kWork, kAll);
      continue;
    }
    if (c.kind == Command::Kind::Copy) {
      const VkBufferCopy copy{c.regions[0].offset, c.regions[1].offset, c.regions[0].nbytes};
      vk.vkCmdCopyBuffer(made.buffer, buffers_[c.regions[0].buffer].buffer, buffers_[c.regions[1].buffer].buffer, 1, &copy);
    } else {
      dispatch(made.buffer, made.sets, c);
    }
    if (every && ++done % every == 0) stamped();
  }
  rest(made.buffer);
  barrier(made.buffer, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
  check(vk.vkEndCommandBuffer(made.buffer), "vkEndCommandBuffer");
  return made;
}

std::vector<double> Pack::submit(const Recording& recording, double* wall_us) {
  const auto start = std::chrono::steady_clock::now();
  device_.submit(recording.buffer, limit_ns_);
  if (wall_us) *wall_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  std::vector<double> spans;
  if (!recording.stamps) return spans;
  std::vector<uint64_t> stamps(recording.stamps);
  check(vk.vkGetQueryPoolResults(device_.handle(), recording.queries, 0, recording.stamps, stamps.size() * 8, stamps.data(), 8,
                                 VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT), "vkGetQueryPoolResults");
  const uint64_t mask = device_.timestamp_bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << device_.timestamp_bits) - 1;
  for (size_t i = 1; i < stamps.size(); ++i)
    spans.push_back(static_cast<double>((stamps[i] - stamps[i - 1]) & mask) * device_.facts.properties.limits.timestampPeriod / 1e3);
  return spans;
}

std::vector<Command> Pack::repeated(size_t times) const {
  std::vector<Command> once;
  bool pending = false;
  for (const Command& c : plan.run) {
    const bool host = c.kind == Command::Kind::Copy && (plan.buffers[c.regions[0].buffer].kind == Kind::Upload || plan.buffers[c.regions[1].buffer].kind == Kind::Download);
    if (host) continue;
    if (c.kind == Command::Kind::Barrier) {
      pending = !once.empty();
      continue;
    }
    if (pending) once.push_back(Command{});
    pending = false;
    once.push_back(c);
  }
  std::vector<Command> all;
  for (size_t i = 0; i < times; ++i) {
    if (i) all.push_back(Command{});
    all.insert(all.end(), once.begin(), once.end());
  }
  return all;
}

std::vector<Command> Pack::downloads() const {
  std::vector<Command> all;
  for (const Command& c : plan.run)
    if (c.kind == Command::Kind::Copy && plan.buffers[c.regions[1].buffer].kind == Kind::Download) all.push_back(c);
  return all;
}

void Pack::barrier(VkCommandBuffer buffer, VkPipelineStageFlags stages, VkAccessFlags accesses) const {
  const VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, accesses};
  vk.vkCmdPipelineBarrier(buffer, kWork, stages, 0, 1, &memory, 0, nullptr, 0, nullptr);
}

void Pack::transition(VkCommandBuffer buffer, uint32_t number, VkImageLayout layout) {
  const auto found = layouts_.find(number);
  const VkImageLayout before = found == layouts_.end() ? kRest : found->second;
  if (before == layout) return;
  layouts_[number] = layout;
  const bool stored = layout == VK_IMAGE_LAYOUT_GENERAL;
  VkImageMemoryBarrier change{VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER};
  change.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  change.dstAccessMask = stored ? VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT : VK_ACCESS_SHADER_READ_BIT;
  change.oldLayout = before == kRest ? VK_IMAGE_LAYOUT_UNDEFINED : before;
  change.newLayout = layout;
  change.srcQueueFamilyIndex = change.dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED;
  change.image = buffers_[number].image;
  change.subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
  vk.vkCmdPipelineBarrier(buffer, kWork, kWork, 0, 0, nullptr, 0, nullptr, 1, &change);
}

void Pack::rest(VkCommandBuffer buffer) {
  for (uint32_t i = 0; i < buffers_.size(); ++i) transition(buffer, i, kRest);
  layouts_.clear();
}

void Pack::dispatch(VkCommandBuffer buffer, VkDescriptorPool sets, const Command& c) {
  const Pipeline& p = pipelines_[c.pipeline];
  const PipelineLine& line = plan.pipelines[c.pipeline];
  const VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, nullptr, sets, 1, &p.set};
  VkDescriptorSet set{};
  check(vk.vkAllocateDescriptorSets(device_.handle(), &info, &set), "vkAllocateDescriptorSets");
  std::vector<VkDescriptorBufferInfo> places(c.regions.size());
  std::vector<VkDescriptorImageInfo> textures(c.regions.size());
  std::vector<VkWriteDescriptorSet> writes;
  for (uint32_t i = 0; i < c.regions.size(); ++i) {
    const Region& r = c.regions[i];
    const char kind = line.kind(i);
    const VkImageLayout layout = kind == 'i' ? VK_IMAGE_LAYOUT_GENERAL : kRest;
    if (kind == 'b') places[i] = {buffers_[r.buffer].buffer, r.offset, r.nbytes};
    else textures[i] = {kind == 's' ? device_.sampler() : VK_NULL_HANDLE, buffers_[r.buffer].view, layout};
    if (kind != 'b') transition(buffer, r.buffer, layout);
    VkWriteDescriptorSet write{VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = set;
    write.dstBinding = i;
    write.descriptorCount = 1;
    write.descriptorType = descriptor_type(kind);
    write.pBufferInfo = &places[i];
    write.pImageInfo = &textures[i];
    writes.push_back(write);
  }
  if (!writes.empty()) vk.vkUpdateDescriptorSets(device_.handle(), static_cast<uint32_t>(writes.size()), writes.data(), 0, nullptr);
  vk.vkCmdBindPipeline(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, p.pipeline);
  vk.vkCmdBindDescriptorSets(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, p.layout, 0, 1, &set, 0, nullptr);
  if (!c.push.empty()) vk.vkCmdPushConstants(buffer, p.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, static_cast<uint32_t>(c.push.size()), c.push.data());
  vk.vkCmdDispatch(buffer, c.groups[0], c.groups[1], c.groups[2]);
}

}  // namespace player
