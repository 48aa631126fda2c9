#include "upload.hpp"

#include "host_copy.hpp"

#include <algorithm>

namespace vkconv {
namespace {

constexpr uint64_t kMostChunks = 4096;

}  // namespace

UploadCore::~UploadCore() {
  constexpr uint64_t kPatienceNs = 10'000'000'000;
  if (in_forked_child() || timeline.empty()) return;
  try {
    wait(kPatienceNs);
  } catch (const VulkanError&) {
    // A device that is lost has nothing left to wait for.
  }
  timeline.front().value = value;
  const std::lock_guard<std::mutex> lock(core->timelines_mutex);
  core->timelines.splice(core->timelines.end(), timeline);
}

void UploadCore::take_timeline() {
  {
    const std::lock_guard<std::mutex> lock(core->timelines_mutex);
    if (!core->timelines.empty()) timeline.splice(timeline.end(), core->timelines, core->timelines.begin());
  }
  if (timeline.empty()) {
    VkSemaphoreTypeCreateInfo type{};
    type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
    info.pNext = &type;
    std::list<Timeline> made(1);
    check(vkCreateSemaphore(core->handle, &info, nullptr, &made.front().semaphore), "vkCreateSemaphore");
    timeline.splice(timeline.end(), made);
  }
  value = timeline.front().value;
}

bool UploadCore::wait(uint64_t timeout_ns) const {
  const uint64_t awaited = value;
  uint64_t reached = 0;
  check(core->semaphore_value(core->handle, semaphore(), &reached), "vkGetSemaphoreCounterValue");
  if (reached >= awaited) return true;
  const VkSemaphore raw = semaphore();
  VkSemaphoreWaitInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
  info.semaphoreCount = 1;
  info.pSemaphores = &raw;
  info.pValues = &awaited;
  const VkResult result = core->wait_semaphores(core->handle, &info, timeout_ns);
  if (result == VK_TIMEOUT) return false;
  check(result, "vkWaitSemaphores");
  return true;
}

void UploadCore::submit(size_t chunk) {
  const uint64_t next = value + 1;
  VkTimelineSemaphoreSubmitInfo values{};
  values.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
  values.signalSemaphoreValueCount = 1;
  values.pSignalSemaphoreValues = &next;
  const VkSemaphore raw = semaphore();
  VkSubmitInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  info.pNext = &values;
  info.commandBufferCount = 1;
  info.pCommandBuffers = &commands[chunk];
  info.signalSemaphoreCount = 1;
  info.pSignalSemaphores = &raw;
  {
    const std::lock_guard<std::mutex> lock(core->copies_mutex());
    check(vkQueueSubmit(core->copy_queue, 1, &info, VK_NULL_HANDLE), "vkQueueSubmit");
  }
  value = next;
}

Upload::Upload(const CorePtr& core, const Buffer& staging, const Buffer& target, uint64_t nbytes, uint64_t chunk_bytes) {
  constexpr auto call = "Device.upload";
  if (core->wait_semaphores == nullptr)
    throw VulkanError(VK_ERROR_FEATURE_NOT_PRESENT, call, "the device has no timeline semaphores");
  auto made = std::make_shared<UploadCore>();
  made->core = core;
  made->staging = staging.core(call);
  made->target = target.core(call);
  if (made->staging->core != core || made->target->core != core)
    throw VulkanError::misuse(call, "a buffer belongs to another device");
  if (made->staging->mapped == nullptr || (made->staging->memory_flags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) == 0)
    throw VulkanError::misuse(call, "a buffer of kind '" + staging.kind() + "' is no staging for uploads");
  if (target.kind() != "streamed")
    throw VulkanError::misuse(call, "the target is of kind '" + target.kind() + "', not 'streamed'");
  VKCONV_REQUIRE(nbytes > 0 && nbytes <= made->staging->nbytes && nbytes <= made->target->nbytes,
          call << ": " << nbytes << " bytes, staging has " << made->staging->nbytes << " and the target "
               << made->target->nbytes);
  const uint64_t least = (nbytes + kMostChunks - 1) / kMostChunks;
  VKCONV_REQUIRE(chunk_bytes > 0, call << ": chunks of 0 bytes");
  made->nbytes = nbytes;
  // Whole words, where copies are fastest.
  made->chunk_bytes = (std::max(chunk_bytes, least) + 255) / 256 * 256;

  VkCommandPoolCreateInfo pool{};
  pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  pool.queueFamilyIndex = core->copy_family;
  made->pool = decltype(made->pool)(core);
  check(vkCreateCommandPool(core->handle, &pool, nullptr, made->pool.out()), "vkCreateCommandPool");
  made->commands.resize((nbytes + made->chunk_bytes - 1) / made->chunk_bytes);
  VkCommandBufferAllocateInfo allocate{};
  allocate.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  allocate.commandPool = made->pool.get();
  allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  allocate.commandBufferCount = static_cast<uint32_t>(made->commands.size());
  check(vkAllocateCommandBuffers(core->handle, &allocate, made->commands.data()), "vkAllocateCommandBuffers");
  for (size_t i = 0; i < made->commands.size(); ++i) {
    VkCommandBufferBeginInfo begin{};
    begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    check(vkBeginCommandBuffer(made->commands[i], &begin), "vkBeginCommandBuffer");
    const uint64_t offset = i * made->chunk_bytes;
    const VkBufferCopy region{offset, offset, std::min(made->chunk_bytes, nbytes - offset)};
    vkCmdCopyBuffer(made->commands[i], made->staging->buffer.get(), made->target->buffer.get(), 1, &region);
    check(vkEndCommandBuffer(made->commands[i]), "vkEndCommandBuffer");
  }
  made->take_timeline();
  core_ = std::move(made);
}

const std::shared_ptr<UploadCore>& Upload::core(const char* call) const {
  if (!core_) throw VulkanError::misuse(call, "the upload's device is closed");
  return core_;
}

void Upload::write(const std::optional<py::array>& data, unsigned threads, const std::string& narrowed) {
  constexpr auto call = "Upload.write";
  const auto upload = core(call);  // a copy: close() in another thread must not pull it away
  UploadCore& u = *upload;
  const Narrow type = narrow_of(narrowed);
  const void* from = data ? bytes_of(call, *data, u.nbytes, type) : nullptr;
  const py::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(u.mutex);
  // The device may still read what a write before left here, where no run that waits for it came in between.
  if (!u.wait(UINT64_MAX)) throw VulkanError::timed_out(call, UINT64_MAX);
  size_t chunk = 0;
  const auto arrived = [&](size_t end) {
    while (chunk < u.commands.size() && std::min<uint64_t>(u.nbytes, (chunk + 1) * u.chunk_bytes) <= end) u.submit(chunk++);
  };
  if (from != nullptr)
    copy_bytes(u.staging->mapped, from, u.nbytes, threads, true, type, u.chunk_bytes, arrived);
  else
    arrived(u.nbytes);
}

const void* bytes_of(const char* call, const py::array& data, uint64_t nbytes, Narrow type) {
  VKCONV_REQUIRE((data.flags() & py::array::c_style) != 0, call << ": the array's elements do not lie in a row");
  const uint64_t wanted = type == Narrow::none ? nbytes : 2 * nbytes;
  VKCONV_REQUIRE(static_cast<uint64_t>(data.nbytes()) == wanted,
          call << ": the array has " << static_cast<uint64_t>(data.nbytes()) << " bytes, " << wanted << " are wanted");
  VKCONV_REQUIRE(type == Narrow::none || py::isinstance<py::array_t<float>>(data),
          call << ": only floats of 32 bits can be narrowed");
  return data.data();
}

}  // namespace vkconv
