#include "recording_core.hpp"

#include "recording.hpp"

#include <algorithm>

namespace vkconv {
namespace {

// The command buffer of a kp::Sequence is private; an explicit instantiation may name it (see device.cpp).
template <auto Member>
struct SequenceMember {
  friend const std::shared_ptr<vk::CommandBuffer>& private_command_buffer(const kp::Sequence& sequence) {
    return sequence.*Member;
  }
};
const std::shared_ptr<vk::CommandBuffer>& private_command_buffer(const kp::Sequence& sequence);
template struct SequenceMember<&kp::Sequence::mCommandBuffer>;

// A Kompute operation that records one command; what the command uses lives in the function's captures, so the sequence
// keeps it alive.
class Command final : public kp::OpBase {
 public:
  explicit Command(std::function<void(VkCommandBuffer)> record) : record_(std::move(record)) {}
  void record(const vk::CommandBuffer& commands) override { record_(commands); }
  void preEval(const vk::CommandBuffer&) override {}
  void postEval(const vk::CommandBuffer&) override {}

 private:
  std::function<void(VkCommandBuffer)> record_;
};

// What was let go in flight. It belongs to the process and not to the device, which it keeps alive; it is never destroyed,
// so that work without an end does not hold up the end of the process.
struct Abandoned {
  std::mutex mutex;
  std::shared_ptr<RecordingCore> first;  // of a list: to add to it takes no memory, which destructors may not fail for

  static Abandoned& all() {
    static auto& instance = *new Abandoned();
    return instance;
  }
};

std::atomic<size_t> unsettled{0};  // submissions whose end nobody has seen

}  // namespace

VkCommandBuffer command_buffer(const kp::Sequence& sequence) {
  const auto& pointer = private_command_buffer(sequence);
  return pointer ? static_cast<VkCommandBuffer>(*pointer) : VK_NULL_HANDLE;
}

void RecordingCore::begin_sequence() {
  sequence = std::make_shared<kp::Sequence>(kompute_physical_device(core), kompute_device(core), kompute_queue(core),
                                            core->family);
  commands = command_buffer(*sequence);
  if (commands == VK_NULL_HANDLE)
    throw VulkanError(VK_ERROR_OUT_OF_HOST_MEMORY, "kp::Sequence", "Kompute got no command buffer");
  sequence->begin();
}

bool RecordingCore::in_flight() {
  if (is_cut_short()) end_cut_short();
  if (state != State::pending) return false;
  const VkResult result = vkGetFenceStatus(core->handle, fence.get());
  if (result != VK_SUCCESS && result != VK_ERROR_DEVICE_LOST) return true;
  over();
  return false;
}

void RecordingCore::over() {
  if (state == State::pending) --unsettled;
  state = State::ready;
}

void RecordingCore::record(std::function<void(VkCommandBuffer)> command) {
  operations.push_back(std::make_shared<Command>(std::move(command)));
  sequence->record(operations.back());
}

VkDescriptorSet RecordingCore::allocate_set(const PipelineCore& pipeline) {
  const VkDescriptorSetLayout layout = pipeline.set_layout.get();
  VkDescriptorSetAllocateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO;
  info.descriptorSetCount = 1;
  info.pSetLayouts = &layout;
  VkDescriptorSet set = VK_NULL_HANDLE;
  if (pool) {
    info.descriptorPool = pool->get();
    const VkResult result = vkAllocateDescriptorSets(core->handle, &info, &set);
    if (result == VK_SUCCESS) return set;
    if (result != VK_ERROR_OUT_OF_POOL_MEMORY && result != VK_ERROR_FRAGMENTED_POOL)
      throw VulkanError(result, "vkAllocateDescriptorSets");
  }
  constexpr uint32_t kFirstPoolSets = 16;
  constexpr uint32_t kLargestPoolSets = 1024;
  constexpr uint32_t kBuffersPerSet = 6;
  pool_sets = std::min(std::max(kFirstPoolSets, 2 * pool_sets), kLargestPoolSets);
  std::vector<VkDescriptorPoolSize> sizes;
  for (const Binding kind : {Binding::buffer, Binding::sampled, Binding::stored}) {
    const auto own = static_cast<uint32_t>(std::count(pipeline.bindings.begin(), pipeline.bindings.end(), kind));
    if (kind == Binding::buffer)
      sizes.push_back({descriptor_type(kind), std::max(pool_sets * kBuffersPerSet, own)});
    else if (own > 0)  // most pools need none; one that needs some gets as many for each set
      sizes.push_back({descriptor_type(kind), pool_sets * own});
  }
  VkDescriptorPoolCreateInfo pool_info{};
  pool_info.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO;
  pool_info.maxSets = pool_sets;
  pool_info.poolSizeCount = static_cast<uint32_t>(sizes.size());
  pool_info.pPoolSizes = sizes.data();
  auto grown = std::make_shared<DescriptorPoolHandle>(core);
  check(vkCreateDescriptorPool(core->handle, &pool_info, nullptr, grown->out()), "vkCreateDescriptorPool");
  pool = std::move(grown);
  info.descriptorPool = pool->get();
  check(vkAllocateDescriptorSets(core->handle, &info, &set), "vkAllocateDescriptorSets");
  return set;
}

void RecordingCore::transition(const std::shared_ptr<ImageCore>& image, VkImageLayout layout) {
  auto found = std::find_if(layouts.begin(), layouts.end(), [&](const auto& item) { return item.first == image; });
  if (found == layouts.end()) found = layouts.insert(found, {image, ImageCore::kRestLayout});
  VkImageLayout before = std::exchange(found->second, layout);
  if (before == layout) return;
  if (before == ImageCore::kRestLayout) before = VK_IMAGE_LAYOUT_UNDEFINED;
  record([image, before, layout](VkCommandBuffer commands) {
    VkImageMemoryBarrier barrier{};
    barrier.sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER;
    barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT;
    if (layout == VK_IMAGE_LAYOUT_GENERAL) barrier.dstAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    barrier.oldLayout = before;
    barrier.newLayout = layout;
    barrier.srcQueueFamilyIndex = barrier.dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED;
    barrier.image = image->image.get();
    barrier.subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
    constexpr VkPipelineStageFlags stages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    vkCmdPipelineBarrier(commands, stages, stages, 0, 0, nullptr, 0, nullptr, 1, &barrier);
  });
}

void RecordingCore::begin_submission(const char* call) {
  reap_abandoned(core);
  if (state == State::recording) throw VulkanError::misuse(call, "the recording is not ended: call end() first");
  const auto check_unchanged = [&](const kp::Sequence& kept, VkCommandBuffer recorded) {
    if (!kept.isInit() || kept.isRecording() || command_buffer(kept) != recorded)
      throw VulkanError::misuse(call, "the kp.Sequence of this recording was changed or destroyed through kp");
    if (kept.isRunning()) throw VulkanError::misuse(call, "the kp.Sequence of this recording is running");
  };
  check_unchanged(*sequence, commands);
  if (begun) return;
  if (in_flight())
    throw VulkanError::misuse(call, "the device still works on the last submission: wait() for it first");
  failure.reset();
  const VkFence raw = fence.get();
  check(vkResetFences(core->handle, 1, &raw), "vkResetFences");
  completed = false;
  begun = true;
}

namespace {

constexpr VkPipelineStageFlags kWorkStages = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;

}  // namespace

VkResult RecordingCore::submit_part(const RecordedPart& part) {
  const VkSemaphore semaphore = part.upload->semaphore();
  const uint64_t value = part.upload->value;
  VkTimelineSemaphoreSubmitInfo timeline{};
  timeline.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
  timeline.waitSemaphoreValueCount = 1;
  timeline.pWaitSemaphoreValues = &value;
  VkSubmitInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  info.pNext = &timeline;
  info.commandBufferCount = 1;
  info.pCommandBuffers = &part.commands;
  info.waitSemaphoreCount = 1;
  info.pWaitSemaphores = &semaphore;
  info.pWaitDstStageMask = &kWorkStages;
  if (submitted_parts == 0) first_submitted = std::chrono::steady_clock::now();
  const std::lock_guard<std::mutex> lock(core->queue_mutex);
  return vkQueueSubmit(core->queue, 1, &info, VK_NULL_HANDLE);
}

void RecordingCore::submit_parts(const UploadCore& upload, uint64_t nbytes) {
  for (; submitted_parts < parts.size(); ++submitted_parts) {
    const RecordedPart& part = parts[submitted_parts];
    if (part.upload.get() != &upload || part.nbytes > nbytes) return;
    const VkResult result = submit_part(part);
    if (result != VK_SUCCESS) throw VulkanError(result, "vkQueueSubmit");
  }
}

void RecordingCore::submit() {
  VkSubmitInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  info.commandBufferCount = 1;
  info.pCommandBuffers = &commands;
  std::vector<VkSemaphore> semaphores, signalled;
  std::vector<uint64_t> values, signals;
  VkTimelineSemaphoreSubmitInfo timeline{};
  timeline.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
  for (const auto& upload : uploads) {
    semaphores.push_back(upload->semaphore());
    values.push_back(upload->value);
  }
  for (const auto& download : downloads) {
    // Behind a run that timed out it may still be at work; that run is over, so this is soon.
    if (!download->wait(download->value, UINT64_MAX)) throw VulkanError::timed_out("Recording.submit", UINT64_MAX);
    signalled.push_back(download->semaphore());
    signals.push_back(download->before());
  }
  const std::vector<VkPipelineStageFlags> stages(values.size(), kWorkStages);
  if (!values.empty() || !signals.empty()) {
    timeline.waitSemaphoreValueCount = static_cast<uint32_t>(values.size());
    timeline.pWaitSemaphoreValues = values.data();
    timeline.signalSemaphoreValueCount = static_cast<uint32_t>(signals.size());
    timeline.pSignalSemaphoreValues = signals.data();
    info.pNext = &timeline;
    info.waitSemaphoreCount = timeline.waitSemaphoreValueCount;
    info.pWaitSemaphores = semaphores.data();
    info.pWaitDstStageMask = stages.data();
    info.signalSemaphoreCount = timeline.signalSemaphoreValueCount;
    info.pSignalSemaphores = signalled.data();
  }
  VkResult result = VK_SUCCESS;
  // Those that no upload has submitted.
  for (; submitted_parts < parts.size() && result == VK_SUCCESS; submitted_parts += result == VK_SUCCESS)
    result = submit_part(parts[submitted_parts]);
  submitted = std::chrono::steady_clock::now();
  if (parts.empty()) first_submitted = submitted;
  if (result == VK_SUCCESS) {
    const std::lock_guard<std::mutex> lock(core->queue_mutex);
    result = vkQueueSubmit(core->queue, 1, &info, fence.get());
  }
  if (result != VK_SUCCESS) {
    begun = submitted_parts > 0;
    throw failure.emplace(result, "vkQueueSubmit");
  }
  state = State::pending;
  begun = false;
  submitted_parts = 0;
  ++unsettled;
  for (const auto& download : downloads) download->submit();
}

void RecordingCore::end_cut_short() {
  submitted_parts = 0;
  begun = false;
  const std::lock_guard<std::mutex> lock(core->queue_mutex);
  // Of nothing: the fence is signalled when all is over that was submitted before. Where it fails the device is lost.
  if (vkQueueSubmit(core->queue, 0, nullptr, fence.get()) != VK_SUCCESS) return;
  state = State::pending;
  ++unsettled;
}

bool RecordingCore::settle(const char* call, uint64_t timeout_ns, double spin_us, const std::function<void()>& before) {
  VKCONV_REQUIRE(spin_us >= 0 && spin_us <= 1e6, call << ": spin_us must be from 0 to 1e6, not " << spin_us);
  using Clock = std::chrono::steady_clock;
  const auto ns_since = [](Clock::time_point start) { return std::chrono::duration<double, std::nano>(Clock::now() - start).count(); };
  // An end that came before anyone looked says little of when it came.
  const bool watched = before || vkGetFenceStatus(core->handle, fence.get()) == VK_NOT_READY;
  const double left_ns = expected_ns - (before ? 0.0 : ns_since(submitted));
  const uint64_t sleep_ns = left_ns > spin_us * 1e3 ? static_cast<uint64_t>(left_ns - spin_us * 500) : 0;
  try {
    if (!wait_fence(*core, fence.get(), timeout_ns, spin_us, before, sleep_ns)) return false;
  } catch (const VulkanError& error) {
    if (error.kind == VulkanError::Kind::device_lost) {
      over();  // the fence will never be signalled
      failure = error;
    }
    throw;
  }
  if (watched) {
    const double took_ns = ns_since(submitted);
    expected_ns = expected_ns == 0 ? took_ns : expected_ns + (took_ns - expected_ns) / 4;
  }
  over();
  completed = true;
  return true;
}

void let_go(std::shared_ptr<RecordingCore> recording, bool close) {
  if (in_forked_child()) {
    keep_for_ever(std::move(recording));  // kp's destructors call Vulkan
  } else if (recording->in_flight()) {
    Abandoned& abandoned = Abandoned::all();
    const std::lock_guard<std::mutex> lock(abandoned.mutex);
    recording->next_abandoned = std::move(abandoned.first);
    abandoned.first = std::move(recording);
  } else if (close) {
    for (const RecordedPart& part : recording->parts) part.sequence->destroy();
    recording->sequence->destroy();
  }
}

bool work_in_flight() {
  Abandoned& abandoned = Abandoned::all();
  const std::unique_lock<std::mutex> lock(abandoned.mutex, std::try_to_lock);
  if (lock)
    for (auto* item = abandoned.first.get(); item != nullptr; item = item->next_abandoned.get()) item->in_flight();
  return unsettled > 0;
}

size_t reap_abandoned(const CorePtr& core) {
  if (in_forked_child()) return 0;
  Abandoned& abandoned = Abandoned::all();
  std::shared_ptr<RecordingCore> done;  // a list, destroyed after the lock is released
  size_t left = 0;
  {
    const std::lock_guard<std::mutex> lock(abandoned.mutex);
    for (auto* place = &abandoned.first; *place;) {
      if ((*place)->in_flight()) {
        left += (*place)->core == core;
        place = &(*place)->next_abandoned;
      } else {
        auto item = std::move(*place);
        *place = std::move(item->next_abandoned);
        item->next_abandoned = std::move(done);
        done = std::move(item);
      }
    }
  }
  while (done) done = std::move(done->next_abandoned);  // one after the other, however many there are
  return left;
}

}  // namespace vkconv
