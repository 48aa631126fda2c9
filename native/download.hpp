// The Python class Download: a buffer of the device on its way to the host, chunk by chunk, behind each run.
#pragma once

#include "copies.hpp"

#include <pybind11/numpy.h>

namespace vkconv {

struct DownloadCore : Copies {
  using Copies::Copies;

  std::atomic<bool> submitted{false};  // all chunks, behind the latest recording

  // What the recording before it signals: the copies come after that.
  uint64_t before() const { return value + 1; }
  // All chunks, once that value is there; the recording was submitted.
  void submit();
};

class Download : public Closable {
 public:
  Download(const CorePtr& core, const Buffer& source, const Buffer& staging, uint64_t nbytes, uint64_t chunk_bytes);

  // What the last recording that this came after left, into an array by `threads` of the host: each chunk while the next
  // ones come. Polls for each so long, then blocks. `widened` as for Buffer::read.
  void read(py::array& out, unsigned threads, double spin_us, const std::string& widened);
  const std::shared_ptr<DownloadCore>& core(const char* call) const;
  void release() override { core_.reset(); }

 private:
  std::shared_ptr<DownloadCore> core_;
};

}  // namespace vkconv
