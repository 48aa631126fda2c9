#include "copies.hpp"

#include <algorithm>
#include <chrono>

namespace vkconv {
namespace {

constexpr uint64_t kMostChunks = 4096;

}  // namespace

Copies::Copies(const char* call, const CorePtr& core_, uint32_t family, const Buffer& from, const Buffer& to, uint64_t nbytes_,
               uint64_t chunk_bytes_, bool to_host)
    : core(core_), source(from.core(call)), target(to.core(call)), nbytes(nbytes_) {
  if (core->wait_semaphores == nullptr)
    throw VulkanError(VK_ERROR_FEATURE_NOT_PRESENT, call, "the device has no timeline semaphores");
  if (source->core != core || target->core != core) throw VulkanError::misuse(call, "a buffer belongs to another device");
  VKCONV_REQUIRE(nbytes > 0 && nbytes <= source->nbytes && nbytes <= target->nbytes,
          call << ": " << nbytes << " bytes, the source has " << source->nbytes << " and the target " << target->nbytes);
  VKCONV_REQUIRE(chunk_bytes_ > 0, call << ": chunks of 0 bytes");
  const uint64_t least = (nbytes + kMostChunks - 1) / kMostChunks;
  // Whole words, where copies are fastest.
  chunk_bytes = (std::max(chunk_bytes_, least) + 255) / 256 * 256;

  VkCommandPoolCreateInfo pool_info{};
  pool_info.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  pool_info.queueFamilyIndex = family;
  pool = decltype(pool)(core);
  check(vkCreateCommandPool(core->handle, &pool_info, nullptr, pool.out()), "vkCreateCommandPool");
  commands.resize((nbytes + chunk_bytes - 1) / chunk_bytes);
  VkCommandBufferAllocateInfo allocate{};
  allocate.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  allocate.commandPool = pool.get();
  allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  allocate.commandBufferCount = static_cast<uint32_t>(commands.size());
  check(vkAllocateCommandBuffers(core->handle, &allocate, commands.data()), "vkAllocateCommandBuffers");
  VkMemoryBarrier seen{};
  seen.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  seen.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
  seen.dstAccessMask = VK_ACCESS_HOST_READ_BIT;
  for (size_t i = 0; i < commands.size(); ++i) {
    VkCommandBufferBeginInfo begin{};
    begin.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    check(vkBeginCommandBuffer(commands[i], &begin), "vkBeginCommandBuffer");
    const uint64_t offset = i * chunk_bytes;
    const VkBufferCopy region{offset, offset, end_of(i) - offset};
    vkCmdCopyBuffer(commands[i], source->buffer.get(), target->buffer.get(), 1, &region);
    if (to_host)
      vkCmdPipelineBarrier(commands[i], VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &seen, 0, nullptr, 0,
                           nullptr);
    check(vkEndCommandBuffer(commands[i]), "vkEndCommandBuffer");
  }
  take_timeline();
}

Copies::~Copies() {
  constexpr uint64_t kPatienceNs = 10'000'000'000;
  if (in_forked_child() || timeline.empty()) return;
  try {
    wait(value, kPatienceNs);
  } catch (const VulkanError&) {
    // A device that is lost has nothing left to wait for.
  }
  timeline.front().value = value;
  const std::lock_guard<std::mutex> lock(core->timelines_mutex);
  core->timelines.splice(core->timelines.end(), timeline);
}

void Copies::take_timeline() {
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

bool Copies::wait(uint64_t awaited, uint64_t timeout_ns, double spin_us) const {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  uint64_t reached = 0;
  do {
    check(core->semaphore_value(core->handle, semaphore(), &reached), "vkGetSemaphoreCounterValue");
    if (reached >= awaited) return true;
  } while (std::chrono::duration<double, std::micro>(Clock::now() - start).count() < spin_us);
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

}  // namespace vkconv
