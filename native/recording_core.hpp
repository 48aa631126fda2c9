// What is behind a Recording: the sequence and all that its commands use, and what the last submission came to. It outlives
// the Python object while the device works on it.
#pragma once

#include "device.hpp"
#include "download.hpp"
#include "upload.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>

namespace vkconv {

VkCommandBuffer command_buffer(const kp::Sequence& sequence);

// The first commands of a recording, which are submitted before the others, as soon as the first bytes of an upload are there.
struct RecordedPart {
  std::shared_ptr<kp::Sequence> sequence;
  VkCommandBuffer commands = VK_NULL_HANDLE;
  std::shared_ptr<UploadCore> upload;
  uint64_t nbytes = 0;
};

struct RecordingCore {
  enum class State { recording, ready, pending };

  CorePtr core;
  // The sequence holds the operations too, but Sequence.clear() would drop what the command buffer still uses.
  std::vector<std::shared_ptr<kp::OpBase>> operations;
  std::vector<RecordedPart> parts;
  size_t submitted_parts = 0;   // of the submission that is being made
  bool begun = false;           // it was begun, and submit() has not ended it
  std::shared_ptr<kp::Sequence> sequence;  // of what is behind the parts
  VkCommandBuffer commands = VK_NULL_HANDLE;
  FenceHandle fence;
  std::shared_ptr<QueryPoolHandle> queries;
  std::vector<std::shared_ptr<UploadCore>> uploads;  // what each submission waits for
  std::vector<std::shared_ptr<DownloadCore>> downloads;  // what comes behind each
  uint32_t query_count = 0;   // capacity
  uint32_t queries_used = 0;
  std::shared_ptr<DescriptorPoolHandle> pool;  // the one being filled; dispatches keep the full ones
  uint32_t pool_sets = 0;
  std::vector<std::pair<std::shared_ptr<ImageCore>, VkImageLayout>> layouts;  // of images, as what is recorded leaves them
  State state = State::recording;
  bool completed = false;     // the last submission ran to its end
  std::optional<VulkanError> failure;  // of the last submission, which is over
  bool close_after_use = false;  // the device was closed while a thread was inside a call
  std::atomic_flag busy = ATOMIC_FLAG_INIT;
  std::shared_ptr<RecordingCore> next_abandoned;

  // A new sequence for what is recorded next.
  void begin_sequence();
  // Whether the device may still touch what this owns; nothing runs any more on a lost one.
  bool in_flight();
  // Whether parts of a submission were made that never came to its end.
  bool is_cut_short() const { return state == State::ready && submitted_parts > 0; }
  // Its last submission has come to its end.
  void over();

  // Adds one command; what it uses lives in the function's captures.
  void record(std::function<void(VkCommandBuffer)> command);
  VkDescriptorSet allocate_set(const PipelineCore& pipeline);
  // Brings an image into a layout, with what was written to it before visible to what comes. What one at rest holds is
  // dropped where it leaves that, to be stored or cleared.
  void transition(const std::shared_ptr<ImageCore>& image, VkImageLayout layout);
  // Checks, under the caller's Use, that the command buffer may be submitted now; of a submission of which parts were made it
  // did so before them.
  void begin_submission(const char* call);
  // The next parts, as far as they need no more than so many bytes of an upload, which it was given by now.
  void submit_parts(const UploadCore& upload, uint64_t nbytes);
  VkResult submit_part(const RecordedPart& part);
  // What is left.
  void submit();
  // Makes the end of a submission that was cut short, so that it can be waited for.
  void end_cut_short();
  // What a submission takes until its end is seen, as those before took; 0 before the first.
  double expected_ns = 0;
  std::chrono::steady_clock::time_point submitted;
  std::chrono::steady_clock::time_point first_submitted;  // the first part of the same submission

  // Waits for the submission that `before`, if any, makes; false on time-out. Where more than spin_us are expected, it sleeps
  // until half of spin_us are left, then polls.
  bool settle(const char* call, uint64_t timeout_ns, double spin_us, const std::function<void()>& before = {});
};

// Gives a recording up without waiting for the device. A sequence that Python may still hold is destroyed if `close`.
void let_go(std::shared_ptr<RecordingCore> recording, bool close);

// One thread's call on a recording. Refuses a second thread at once instead of letting it wait: replaying one recording twice
// at a time is a bug. Made and destroyed under the GIL, which orders it with close().
class Use {
 public:
  Use(std::shared_ptr<RecordingCore> recording, const char* call) : recording_(std::move(recording)) {
    if (recording_->busy.test_and_set()) throw VulkanError::misuse(call, "the recording is in use by another thread");
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    recording_->busy.clear();
    if (recording_->close_after_use) let_go(std::move(recording_), true);
  }

 private:
  std::shared_ptr<RecordingCore> recording_;
};

}  // namespace vkconv
