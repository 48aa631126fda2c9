#include "download.hpp"

#include "gil.hpp"
#include "host_copy.hpp"
#include "upload.hpp"

#include <algorithm>

namespace vkconv {

void DownloadCore::submit() {
  submitted = false;
  const uint64_t first = before();
  value = first;  // the recording signals that much, whatever comes of the copies
  const size_t count = commands.size();
  const VkSemaphore raw = semaphore();
  constexpr VkPipelineStageFlags stage = VK_PIPELINE_STAGE_TRANSFER_BIT;
  std::vector<uint64_t> values(count);
  std::vector<VkTimelineSemaphoreSubmitInfo> timelines(count);
  std::vector<VkSubmitInfo> infos(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = first + 1 + i;
    timelines[i].sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
    timelines[i].signalSemaphoreValueCount = 1;
    timelines[i].pSignalSemaphoreValues = &values[i];
    infos[i].sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    infos[i].pNext = &timelines[i];
    infos[i].commandBufferCount = 1;
    infos[i].pCommandBuffers = &commands[i];
    infos[i].signalSemaphoreCount = 1;
    infos[i].pSignalSemaphores = &raw;
    if (i > 0) continue;  // what follows on the queue comes later anyway
    timelines[i].waitSemaphoreValueCount = 1;
    timelines[i].pWaitSemaphoreValues = &first;
    infos[i].waitSemaphoreCount = 1;
    infos[i].pWaitSemaphores = &raw;
    infos[i].pWaitDstStageMask = &stage;
  }
  {
    const std::lock_guard<std::mutex> lock(core->back_mutex());
    check(vkQueueSubmit(core->back_queue, static_cast<uint32_t>(count), infos.data(), VK_NULL_HANDLE), "vkQueueSubmit");
  }
  value = first + count;
  submitted = true;
}

Download::Download(const CorePtr& core, const Buffer& source, const Buffer& staging, uint64_t nbytes, uint64_t chunk_bytes) {
  constexpr auto call = "Device.download";
  if (source.kind() != "streamed")
    throw VulkanError::misuse(call, "the source is of kind '" + source.kind() + "', not 'streamed'");
  if (staging.kind() != "download")
    throw VulkanError::misuse(call, "a buffer of kind '" + staging.kind() + "' is no staging for downloads");
  core_ = std::make_shared<DownloadCore>(call, core, core->back_family, source, staging, nbytes, chunk_bytes, true);
}

const std::shared_ptr<DownloadCore>& Download::core(const char* call) const {
  if (!core_) throw VulkanError::misuse(call, "the download's device is closed");
  return core_;
}

void Download::read(py::array& out, unsigned threads, double spin_us, const std::string& widened) {
  constexpr auto call = "Download.read";
  const auto download = core(call);  // a copy: close() in another thread must not pull it away
  DownloadCore& d = *download;
  const Cast how = widening(widened);
  bytes_of(call, out, d.nbytes, how);
  const auto made = static_cast<uint64_t>(out.nbytes());
  void* to = out.mutable_data();
  const WithoutGil release;
  const std::lock_guard<std::mutex> lock(d.mutex);
  const uint64_t last = d.value;
  const size_t chunks = d.commands.size();
  if (!d.submitted) throw VulkanError::misuse(call, "nothing was submitted before it");
  size_t chunk = 0;
  copy_arriving(to, d.target->mapped, made, threads, d.core->interrupts, how, [&](size_t end) {
    while (chunk < chunks && d.end_of(chunk) < end) ++chunk;
    if (!d.wait(last - chunks + chunk + 1, UINT64_MAX, spin_us)) throw VulkanError::timed_out(call, UINT64_MAX);
    return d.end_of(chunk);
  });
}

}  // namespace vkconv
