#include "recording.hpp"

#include "gil.hpp"
#include "recording_core.hpp"

namespace vkconv {
namespace {

struct Scope {
  const char* name;
  VkPipelineStageFlags stage;
  VkAccessFlags reads;
  VkAccessFlags writes;
};
constexpr Scope kScopes[] = {
    {"compute", VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT, VK_ACCESS_SHADER_WRITE_BIT},
    {"transfer", VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT, VK_ACCESS_TRANSFER_WRITE_BIT},
    {"host", VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT, VK_ACCESS_HOST_WRITE_BIT},
};

const Scope& scope(const std::string& name) {
  for (const Scope& item : kScopes)
    if (name == item.name) return item;
  throw py::value_error("a barrier's scope must be 'compute', 'transfer' or 'host', not '" + name + "'");
}

// Written so that no sum can wrap around.
void check_range(const char* what, uint64_t offset, uint64_t nbytes, uint64_t size) {
  VKCONV_REQUIRE(nbytes > 0, what << ": a range of 0 bytes");
  VKCONV_REQUIRE(offset <= size && nbytes <= size - offset,
          what << ": the range of " << nbytes << " bytes at " << offset << " leaves the buffer of " << size << " bytes");
}

// Drivers multiply the number of queries by the size of one in 32 bits (lavapipe), and write over other memory.
constexpr uint32_t kMostTimestamps = 1 << 20;

}  // namespace

Recording::Recording(const CorePtr& core, uint32_t timestamps) : core_(std::make_shared<RecordingCore>()) {
  RecordingCore& r = *core_;
  r.core = core;
  VKCONV_REQUIRE(timestamps <= kMostTimestamps,
          "Device.recording: " << timestamps << " timestamps, a recording has at most " << kMostTimestamps);
  if (timestamps > 0) {
    if (core->timestamp_bits == 0)
      throw VulkanError(VK_ERROR_FEATURE_NOT_PRESENT, "Device.recording", "the device's compute queue has no timestamps");
    VkQueryPoolCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
    info.queryType = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = timestamps;
    r.queries = std::make_shared<QueryPoolHandle>(core);
    check(vkCreateQueryPool(core->handle, &info, nullptr, r.queries->out()), "vkCreateQueryPool");
    r.query_count = timestamps;
  }
  VkFenceCreateInfo fence_info{};
  fence_info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
  r.fence = FenceHandle(core);
  check(vkCreateFence(core->handle, &fence_info, nullptr, r.fence.out()), "vkCreateFence");
  r.begin_sequence();
  if (timestamps > 0)
    r.record([queries = r.queries, timestamps](VkCommandBuffer commands) {
      vkCmdResetQueryPool(commands, queries->get(), 0, timestamps);
    });
}

Recording::~Recording() {
  if (core_) let_go(std::move(core_), false);
}

const std::shared_ptr<RecordingCore>& Recording::core(const char* call) const {
  if (abandoned_) throw VulkanError::misuse(call, "the recording was abandoned");
  if (!core_) throw VulkanError::misuse(call, "the recording's device is closed");
  return core_;
}

RecordingCore& Recording::open(const char* call) const {
  RecordingCore& r = *core(call);
  if (r.state != RecordingCore::State::recording)
    throw VulkanError::misuse(call, "the recording has ended; start a new one to record more");
  if (!r.sequence->isRecording())
    throw VulkanError::misuse(call, "the kp.Sequence of this recording was ended or destroyed through kp");
  return r;
}

std::shared_ptr<kp::Sequence> Recording::sequence() const { return core("Recording.sequence")->sequence; }

namespace {

// A slice of a buffer as a descriptor names it, and what keeps it. ValueError where it breaks a limit.
std::pair<VkDescriptorBufferInfo, std::shared_ptr<BufferCore>> described(const char* call, const RecordingCore& r, size_t number,
                                                                         const Recording::Slice& slice) {
  const auto& [buffer, offset, nbytes] = slice;
  const VkPhysicalDeviceLimits& limits = r.core->limits;
  VKCONV_REQUIRE(buffer != nullptr, call << ": buffer " << number << " is None");
  const auto& owner = buffer->core(call);
  if (owner->core != r.core) throw VulkanError::misuse(call, "a buffer belongs to another device");
  check_range(call, offset, nbytes, owner->nbytes);
  VKCONV_REQUIRE(offset % limits.minStorageBufferOffsetAlignment == 0,
          call << ": offset " << offset << " of buffer " << number
               << " is no multiple of minStorageBufferOffsetAlignment " << limits.minStorageBufferOffsetAlignment);
  VKCONV_REQUIRE(nbytes <= limits.maxStorageBufferRange, call << ": the range of " << nbytes << " bytes of buffer "
                                                       << number << " is over maxStorageBufferRange "
                                                       << limits.maxStorageBufferRange);
  // Whole words, so that a shader may read the last one of a buffer whose size is no multiple of 4.
  const uint64_t range = offset + nbytes == owner->nbytes ? owner->padded_bytes - offset : nbytes;
  return {VkDescriptorBufferInfo{owner->buffer.get(), offset, range}, owner};
}

// The same of an image, in the layout that a sampled or stored one has.
std::pair<VkDescriptorImageInfo, std::shared_ptr<ImageCore>> described(const char* call, const RecordingCore& r, size_t number,
                                                                       const std::shared_ptr<Image>& image, Binding kind) {
  VKCONV_REQUIRE(image != nullptr, call << ": image " << number << " is None");
  const auto& owner = image->core(call);
  if (owner->core != r.core) throw VulkanError::misuse(call, "an image belongs to another device");
  if (kind == Binding::stored) return {{VK_NULL_HANDLE, owner->view.get(), VK_IMAGE_LAYOUT_GENERAL}, owner};
  return {{r.core->sampler, owner->view.get(), ImageCore::kRestLayout}, owner};
}

}  // namespace

void Recording::dispatch(const Pipeline& pipeline, const std::vector<Bound>& bound, const std::string& push,
                         const std::array<uint32_t, 3>& groups) {
  constexpr auto call = "Recording.dispatch";
  RecordingCore& r = open(call);
  const auto program = pipeline.core(call);
  if (program->core != r.core) throw VulkanError::misuse(call, "the pipeline belongs to another device");
  const VkPhysicalDeviceLimits& limits = r.core->limits;
  VKCONV_REQUIRE(bound.size() == program->bindings.size(),
          call << ": " << bound.size() << " buffers given, the pipeline has " << program->bindings.size() << " bindings");
  VKCONV_REQUIRE(push.size() == program->push_bytes,
          call << ": " << push.size() << " bytes of push constants given, the pipeline takes " << program->push_bytes);
  for (size_t axis = 0; axis < 3; ++axis)
    VKCONV_REQUIRE(groups[axis] >= 1 && groups[axis] <= limits.maxComputeWorkGroupCount[axis],
            call << ": " << groups[axis] << " workgroups on axis " << axis << ", the device takes 1 to "
                 << limits.maxComputeWorkGroupCount[axis]);

  std::vector<std::shared_ptr<BufferCore>> owners;
  std::vector<std::pair<std::shared_ptr<ImageCore>, VkImageLayout>> images;
  std::vector<VkDescriptorBufferInfo> ranges(bound.size());
  std::vector<VkDescriptorImageInfo> views(bound.size());
  for (size_t i = 0; i < bound.size(); ++i) {
    const Binding kind = program->bindings[i];
    const auto* slice = std::get_if<Slice>(&bound[i]);
    VKCONV_REQUIRE((slice != nullptr) == (kind == Binding::buffer),
                   call << ": binding " << i << " of the pipeline is " << (slice != nullptr ? "an image" : "a buffer")
                        << ", given " << (slice != nullptr ? "a buffer" : "an image"));
    if (slice != nullptr) {
      auto [range, owner] = described(call, r, i, *slice);
      ranges[i] = range;
      owners.push_back(std::move(owner));
      continue;
    }
    auto [view, owner] = described(call, r, i, std::get<std::shared_ptr<Image>>(bound[i]), kind);
    for (const auto& [other, layout] : images)
      VKCONV_REQUIRE(other != owner || layout == view.imageLayout, call << ": image " << i << " is sampled and stored at once");
    views[i] = view;
    images.emplace_back(std::move(owner), view.imageLayout);
  }

  const VkDescriptorSet set = r.allocate_set(*program);
  std::vector<VkWriteDescriptorSet> writes(bound.size());
  for (uint32_t i = 0; i < writes.size(); ++i) {
    writes[i] = {};
    writes[i].sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
    writes[i].dstSet = set;
    writes[i].dstBinding = i;
    writes[i].descriptorCount = 1;
    writes[i].descriptorType = descriptor_type(program->bindings[i]);
    writes[i].pBufferInfo = &ranges[i];
    writes[i].pImageInfo = &views[i];
  }
  vkUpdateDescriptorSets(r.core->handle, static_cast<uint32_t>(writes.size()), writes.data(), 0, nullptr);

  for (const auto& [image, layout] : images) r.transition(image, layout);
  r.record([program, owners, images, pool = r.pool, set, push, groups](VkCommandBuffer commands) {
    const VkPipelineLayout layout = program->layout.get();
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, program->pipeline.get());
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, nullptr);
    if (!push.empty())
      vkCmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, static_cast<uint32_t>(push.size()),
                         push.data());
    vkCmdDispatch(commands, groups[0], groups[1], groups[2]);
  });
}

void Recording::barrier(const std::vector<std::string>& source, const std::vector<std::string>& destination) {
  RecordingCore& r = open("Recording.barrier");
  VKCONV_REQUIRE(!source.empty() && !destination.empty(), "Recording.barrier: src and dst need at least one scope each");
  VkPipelineStageFlags from = 0;
  VkPipelineStageFlags to = 0;
  VkMemoryBarrier memory{};
  memory.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  for (const auto& name : source) {
    from |= scope(name).stage;
    memory.srcAccessMask |= scope(name).writes;
  }
  for (const auto& name : destination) {
    to |= scope(name).stage;
    memory.dstAccessMask |= scope(name).reads | scope(name).writes;
  }
  r.record([from, to, memory](VkCommandBuffer commands) {
    vkCmdPipelineBarrier(commands, from, to, 0, 1, &memory, 0, nullptr, 0, nullptr);
  });
}

void Recording::copy(const Buffer& source, uint64_t source_offset, const Buffer& destination,
                     uint64_t destination_offset, uint64_t nbytes) {
  constexpr auto call = "Recording.copy";
  RecordingCore& r = open(call);
  const auto from = source.core(call);
  const auto to = destination.core(call);
  if (from->core != r.core || to->core != r.core) throw VulkanError::misuse(call, "a buffer belongs to another device");
  check_range("Recording.copy: source", source_offset, nbytes, from->nbytes);
  check_range("Recording.copy: destination", destination_offset, nbytes, to->nbytes);
  const uint64_t distance =
      source_offset > destination_offset ? source_offset - destination_offset : destination_offset - source_offset;
  VKCONV_REQUIRE(from != to || distance >= nbytes,
          call << ": the " << nbytes << " bytes at " << source_offset << " and at " << destination_offset
               << " of one buffer overlap");
  r.record([from, to, region = VkBufferCopy{source_offset, destination_offset, nbytes}](VkCommandBuffer commands) {
    vkCmdCopyBuffer(commands, from->buffer.get(), to->buffer.get(), 1, &region);
  });
}

void Recording::fill(const Buffer& buffer, uint64_t offset, uint64_t nbytes, uint32_t word) {
  constexpr auto call = "Recording.fill";
  RecordingCore& r = open(call);
  const auto owner = buffer.core(call);
  if (owner->core != r.core) throw VulkanError::misuse(call, "the buffer belongs to another device");
  check_range(call, offset, nbytes, owner->nbytes);
  const uint64_t size = offset + nbytes == owner->nbytes ? owner->padded_bytes - offset : nbytes;
  VKCONV_REQUIRE(offset % 4 == 0 && size % 4 == 0, call << ": " << nbytes << " bytes at " << offset << " are not whole words");
  r.record([owner, offset, size, word](VkCommandBuffer commands) {
    vkCmdFillBuffer(commands, owner->buffer.get(), offset, size, word);
  });
}

void Recording::clear(const Image& image, float value) {
  constexpr auto call = "Recording.clear";
  RecordingCore& r = open(call);
  const auto owner = image.core(call);
  if (owner->core != r.core) throw VulkanError::misuse(call, "the image belongs to another device");
  r.transition(owner, VK_IMAGE_LAYOUT_GENERAL);
  r.record([owner, value](VkCommandBuffer commands) {
    VkClearColorValue color{};
    for (float& channel : color.float32) channel = value;
    const VkImageSubresourceRange all{VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
    vkCmdClearColorImage(commands, owner->image.get(), VK_IMAGE_LAYOUT_GENERAL, &color, 1, &all);
  });
}

uint32_t Recording::timestamp() {
  RecordingCore& r = open("Recording.timestamp");
  VKCONV_REQUIRE(r.queries_used < r.query_count,
          "Recording.timestamp: the recording was made for " << r.query_count << " timestamps");
  const uint32_t index = r.queries_used;
  // At the bottom of the pipe: written when everything recorded before has finished.
  r.record([queries = r.queries, index](VkCommandBuffer commands) {
    vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries->get(), index);
  });
  ++r.queries_used;
  return index;
}

void Recording::part(const Upload& upload, uint64_t nbytes) {
  constexpr auto call = "Recording.part";
  RecordingCore& r = open(call);
  RecordedPart made{r.sequence, r.commands, upload.core(call), nbytes};
  if (made.upload->core != r.core) throw VulkanError::misuse(call, "the upload belongs to another device");
  VKCONV_REQUIRE(nbytes > 0 && nbytes <= made.upload->nbytes,
          call << ": " << nbytes << " bytes, the upload has " << made.upload->nbytes);
  VKCONV_REQUIRE(r.parts.empty() || (r.parts.back().upload == made.upload && r.parts.back().nbytes <= nbytes),
          call << ": parts need more and more bytes of one upload");
  r.sequence->end();
  r.parts.push_back(std::move(made));
  r.begin_sequence();
}

void Recording::end(const std::vector<std::shared_ptr<Upload>>& after, const std::vector<std::shared_ptr<Download>>& then) {
  constexpr auto call = "Recording.end";
  RecordingCore& r = open(call);
  for (const auto& upload : after) {
    VKCONV_REQUIRE(upload != nullptr, call << ": an upload is None");
    r.uploads.push_back(upload->core(call));
    if (r.uploads.back()->core != r.core) throw VulkanError::misuse(call, "an upload belongs to another device");
  }
  for (const auto& download : then) {
    VKCONV_REQUIRE(download != nullptr, call << ": a download is None");
    r.downloads.push_back(download->core(call));
    if (r.downloads.back()->core != r.core) throw VulkanError::misuse(call, "a download belongs to another device");
  }
  for (size_t i = 0; i < r.layouts.size(); ++i) r.transition(r.layouts[i].first, ImageCore::kRestLayout);
  r.sequence->end();
  r.state = RecordingCore::State::ready;
}

void Recording::run(uint64_t timeout_ns, double spin_us) {
  constexpr auto call = "Recording.run";
  const auto r = core(call);  // a copy: close() in another thread must not pull it away
  const Use use(r, call);
  r->begin_submission(call);
  if (!r->settle(call, timeout_ns, spin_us, [&] { r->submit(); })) throw VulkanError::timed_out(call, timeout_ns);
}

void Recording::submit() {
  constexpr auto call = "Recording.submit";
  const auto r = core(call);
  const Use use(r, call);
  r->begin_submission(call);
  const WithoutGil release;
  r->submit();
}

bool Recording::wait(uint64_t timeout_ns, double spin_us) {
  constexpr auto call = "Recording.wait";
  const auto r = core(call);
  const Use use(r, call);
  if (r->state == RecordingCore::State::ready && r->completed) return true;
  if (r->is_cut_short()) r->end_cut_short();
  if (r->failure) throw *r->failure;
  if (r->state != RecordingCore::State::pending) throw VulkanError::misuse(call, "nothing was submitted");
  return r->settle(call, timeout_ns, spin_us);
}

bool Recording::started() const {
  const auto r = core("Recording.started");
  const Use use(r, "Recording.started");
  return r->state == RecordingCore::State::pending || r->is_cut_short() || r->failure;
}

double Recording::age_ns() const {
  const auto r = core("Recording.age_ns");
  const Use use(r, "Recording.age_ns");
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - r->first_submitted).count();
}

std::vector<double> Recording::timestamps_ns() const {
  constexpr auto call = "Recording.timestamps_ns";
  const auto r = core(call);
  const Use use(r, call);
  if (!r->completed) throw VulkanError::misuse(call, "no completed run: run the recording, or wait() for it, first");
  if (r->queries_used == 0) return {};
  std::vector<uint64_t> ticks(r->queries_used);
  check(vkGetQueryPoolResults(r->core->handle, r->queries->get(), 0, r->queries_used, ticks.size() * sizeof(uint64_t),
                              ticks.data(), sizeof(uint64_t), VK_QUERY_RESULT_64_BIT),
        "vkGetQueryPoolResults");
  const uint64_t mask = r->core->timestamp_bits >= 64 ? UINT64_MAX : (uint64_t{1} << r->core->timestamp_bits) - 1;
  std::vector<double> times;
  for (const uint64_t tick : ticks)  // the difference first: the counter may wrap around between two of them
    times.push_back(static_cast<double>((tick - ticks.front()) & mask) * r->core->limits.timestampPeriod);
  return times;
}

void Recording::abandon() {
  if (!core_) return;
  { const Use use(core_, "Recording.abandon"); }
  abandoned_ = true;
  let_go(std::move(core_), true);
}

void Recording::release() {
  if (!core_) return;
  auto r = std::move(core_);
  if (r->busy.test_and_set()) {
    r->close_after_use = true;
  } else {
    let_go(std::move(r), true);
  }
}

}  // namespace vkconv
