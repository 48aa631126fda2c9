// The Python class Upload: bytes of the host on their way into a buffer of the device, chunk by chunk, beside other work.
#pragma once

#include "copies.hpp"
#include "host_copy.hpp"

#include <pybind11/numpy.h>

namespace vkconv {

struct UploadCore : Copies {
  using Copies::Copies;

  void submit(size_t chunk);
};

class Recording;

class Upload : public Closable {
 public:
  Upload(const CorePtr& core, const Buffer& staging, const Buffer& target, uint64_t nbytes, uint64_t chunk_bytes);

  // Into staging by `threads` of the host, and every chunk on to the device while the next ones come. Without an array, what
  // lies in staging already. On the way the array's floats of 32 bits become those of the type `narrowed`. Parts of
  // `recording` are submitted as what they need is on its way.
  void write(const std::optional<py::array>& data, unsigned threads, const std::string& narrowed, const Recording* recording);
  const std::shared_ptr<UploadCore>& core(const char* call) const;
  void release() override { core_.reset(); }

 private:
  std::shared_ptr<UploadCore> core_;
};

// The bytes of an array in C order; ValueError unless there are `nbytes` of them, all in a row, and, where they are cast,
// floats of 32 bits of twice as many.
const void* bytes_of(const char* call, const py::array& data, uint64_t nbytes, Cast how = Cast::none);

// How they lie where they are not in a row; ValueError as of bytes_of otherwise.
std::optional<Strides> strides_of(const char* call, const py::array& data, uint64_t nbytes, Cast how);

}  // namespace vkconv
