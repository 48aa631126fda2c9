// Copies between two buffers chunk by chunk: each is a submission of its own, which counts up a timeline.
#pragma once

#include "device.hpp"

#include <atomic>

namespace vkconv {

struct Copies {
  CorePtr core;
  std::shared_ptr<BufferCore> source;
  std::shared_ptr<BufferCore> target;
  Handle<VkCommandPool, vkDestroyCommandPool> pool;
  std::vector<VkCommandBuffer> commands;  // one a chunk
  std::list<Timeline> timeline;           // of one, which counts submissions that are done
  uint64_t nbytes = 0;
  uint64_t chunk_bytes = 0;
  std::atomic<uint64_t> value{0};  // that the latest submission signals
  std::mutex mutex;                // of one transfer at a time

  // On a queue of the `family`; with `to_host` the host sees what has come. ValueError where the bytes are not there,
  // VulkanError without timeline semaphores and for buffers of two devices.
  Copies(const char* call, const CorePtr& core, uint32_t family, const Buffer& source, const Buffer& target, uint64_t nbytes,
         uint64_t chunk_bytes, bool to_host);
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  // Waits for the copies, which wait for nothing by then.
  ~Copies();

  VkSemaphore semaphore() const { return timeline.front().semaphore; }
  uint64_t end_of(size_t chunk) const { return std::min<uint64_t>(nbytes, (chunk + 1) * chunk_bytes); }
  // Polls for a value of the timeline so long, then blocks; false on time-out.
  bool wait(uint64_t awaited, uint64_t timeout_ns, double spin_us = 0) const;

 private:
  // Takes a timeline that copies before left, or makes one.
  void take_timeline();
};

}  // namespace vkconv
