// The Python class Recording: one kp::Sequence, recorded once and submitted many times with one fence.
#pragma once

#include "device.hpp"

#include <array>
#include <atomic>
#include <tuple>

namespace vkconv {

struct RecordingCore;

class Recording : public Closable {
 public:
  using Slice = std::tuple<std::shared_ptr<Buffer>, uint64_t, uint64_t>;  // buffer, offset, nbytes
  using Bound = std::variant<Slice, std::shared_ptr<Image>>;

  Recording(const CorePtr& core, uint32_t timestamps);
  ~Recording() override;

  std::shared_ptr<kp::Sequence> sequence() const;
  void dispatch(const Pipeline& pipeline, const std::vector<Bound>& bound, const std::string& push,
                const std::array<uint32_t, 3>& groups);
  void barrier(const std::vector<std::string>& source, const std::vector<std::string>& destination);
  void copy(const Buffer& source, uint64_t source_offset, const Buffer& destination, uint64_t destination_offset,
            uint64_t nbytes);
  void fill(const Buffer& buffer, uint64_t offset, uint64_t nbytes, uint32_t word);
  void clear(const Image& image, float value);
  uint32_t timestamp();
  // What was recorded up to here needs no more than the first `nbytes` of what `upload` brings: each submission has it as a
  // part of its own, which the upload makes as soon as they are on their way.
  void part(const Upload& upload, uint64_t nbytes);
  // With `after`, each submission waits for what these uploads were given last; with `then`, these downloads come behind it,
  // and are over before the next one.
  void end(const std::vector<std::shared_ptr<Upload>>& after, const std::vector<std::shared_ptr<Download>>& then);
  void run(uint64_t timeout_ns, double spin_us);
  void submit();
  bool wait(uint64_t timeout_ns, double spin_us);
  bool started() const;
  double age_ns() const;
  std::vector<double> timestamps_ns() const;
  void abandon();
  void release() override;
  const std::shared_ptr<RecordingCore>& core(const char* call) const;

 private:
  RecordingCore& open(const char* call) const;

  std::shared_ptr<RecordingCore> core_;
  bool abandoned_ = false;
};

// A recording that is let go while the device works on it is kept, with all that its commands use, until the device is done.
// Frees those that are done; returns how many of `core`'s are not.
size_t reap_abandoned(const CorePtr& core);

}  // namespace vkconv
