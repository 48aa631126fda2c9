// The Python class Upload: bytes of the host on their way into a buffer of the device, chunk by chunk, beside other work.
#pragma once

#include "device.hpp"
#include "narrow.hpp"

#include <pybind11/numpy.h>

#include <atomic>

namespace vkconv {

struct UploadCore {
  CorePtr core;
  std::shared_ptr<BufferCore> staging;
  std::shared_ptr<BufferCore> target;
  Handle<VkCommandPool, vkDestroyCommandPool> pool;  // on the queue family that copies
  std::vector<VkCommandBuffer> commands;             // one a chunk
  std::list<Timeline> timeline;                      // of one, which counts submissions that are done
  uint64_t nbytes = 0;
  uint64_t chunk_bytes = 0;
  std::atomic<uint64_t> value{0};  // that the latest submission signals
  std::mutex mutex;                // of one write at a time

  UploadCore() = default;
  UploadCore(const UploadCore&) = delete;
  UploadCore& operator=(const UploadCore&) = delete;
  // Waits for the copies, which wait for nothing.
  ~UploadCore();

  VkSemaphore semaphore() const { return timeline.front().semaphore; }
  // Takes a timeline that an upload before left, or makes one.
  void take_timeline();

  bool wait(uint64_t timeout_ns) const;
  void submit(size_t chunk);
};

class Upload : public Closable {
 public:
  Upload(const CorePtr& core, const Buffer& staging, const Buffer& target, uint64_t nbytes, uint64_t chunk_bytes);

  // Into staging by `threads` of the host, and every chunk on to the device while the next ones come. Without an array, what
  // lies in staging already. `narrowed` as `narrow_of` has it: the array's floats of 32 bits become that on the way.
  void write(const std::optional<py::array>& data, unsigned threads, const std::string& narrowed);
  const std::shared_ptr<UploadCore>& core(const char* call) const;
  void release() override { core_.reset(); }

 private:
  std::shared_ptr<UploadCore> core_;
};

// The bytes of an array in C order; ValueError unless there are `nbytes` of them, all in a row, and, where they are to be
// narrowed, floats of 32 bits of twice as many.
const void* bytes_of(const char* call, const py::array& data, uint64_t nbytes, Narrow type = Narrow::none);

}  // namespace vkconv
