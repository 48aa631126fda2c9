#include "upload.hpp"

#include "gil.hpp"
#include "host_copy.hpp"
#include "recording.hpp"
#include "recording_core.hpp"

#include <algorithm>

namespace vkconv {
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
  const auto from = staging.core(call);
  if (from->mapped == nullptr || (from->memory_flags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) == 0)
    throw VulkanError::misuse(call, "a buffer of kind '" + staging.kind() + "' is no staging for uploads");
  if (target.kind() != "streamed")
    throw VulkanError::misuse(call, "the target is of kind '" + target.kind() + "', not 'streamed'");
  core_ = std::make_shared<UploadCore>(call, core, core->copy_family, staging, target, nbytes, chunk_bytes, false);
}

const std::shared_ptr<UploadCore>& Upload::core(const char* call) const {
  if (!core_) throw VulkanError::misuse(call, "the upload's device is closed");
  return core_;
}

void Upload::write(const std::optional<py::array>& data, unsigned threads, const std::string& narrowed,
                   const Recording* recording) {
  constexpr auto call = "Upload.write";
  const auto upload = core(call);  // a copy: close() in another thread must not pull it away
  UploadCore& u = *upload;
  const Cast how = narrowing(narrowed);
  const auto strides = data ? strides_of(call, *data, u.nbytes, how) : std::nullopt;
  const void* from = data ? data->data() : nullptr;
  const auto run = recording != nullptr ? recording->core(call) : nullptr;
  std::optional<Use> use;
  if (run) {
    use.emplace(run, call);
    if (run->is_cut_short())
      throw VulkanError::misuse(call, "parts of the recording were submitted and its end was not: wait() for it first");
    run->begin_submission(call);
  }
  const WithoutGil release;
  const std::lock_guard<std::mutex> lock(u.mutex);
  // The device may still read what a write before left here, where no run that waits for it came in between.
  if (!u.wait(u.value, UINT64_MAX)) throw VulkanError::timed_out(call, UINT64_MAX);
  size_t chunk = 0;
  const auto arrived = [&](size_t end) {
    while (chunk < u.commands.size() && u.end_of(chunk) <= end) {
      u.submit(chunk);
      if (run) run->submit_parts(u, u.end_of(chunk));
      ++chunk;
    }
  };
  if (from != nullptr)
    copy_bytes(u.source->mapped, from, u.nbytes, threads, u.core->interrupts, true, how, strides ? &*strides : nullptr,
               u.chunk_bytes, arrived);
  else
    arrived(u.nbytes);
}

namespace {

void check_bytes(const char* call, const py::array& data, uint64_t nbytes, Cast how) {
  const uint64_t wanted = how == Cast::none ? nbytes : 2 * nbytes;
  VKCONV_REQUIRE(static_cast<uint64_t>(data.nbytes()) == wanted,
          call << ": the array has " << static_cast<uint64_t>(data.nbytes()) << " bytes, " << wanted << " are wanted");
  VKCONV_REQUIRE(how == Cast::none || py::isinstance<py::array_t<float>>(data),
          call << ": only floats of 32 bits are cast to 16, or made of them");
}

}  // namespace

const void* bytes_of(const char* call, const py::array& data, uint64_t nbytes, Cast how) {
  VKCONV_REQUIRE((data.flags() & py::array::c_style) != 0, call << ": the array's elements do not lie in a row");
  check_bytes(call, data, nbytes, how);
  return data.data();
}

std::optional<Strides> strides_of(const char* call, const py::array& data, uint64_t nbytes, Cast how) {
  check_bytes(call, data, nbytes, how);
  if ((data.flags() & py::array::c_style) != 0) return std::nullopt;
  Strides made;
  made.item_bytes = static_cast<size_t>(data.itemsize());
  VKCONV_REQUIRE(made.item_bytes <= 16, call << ": elements of " << made.item_bytes << " bytes");
  for (py::ssize_t axis = 0; axis < data.ndim(); ++axis) {
    const auto count = static_cast<size_t>(data.shape(axis));
    const auto stride = static_cast<ptrdiff_t>(data.strides(axis));
    if (count == 1) continue;
    if (!made.shape.empty() && made.strides.back() == static_cast<ptrdiff_t>(count) * stride) {  // one walk
      made.shape.back() *= count;
      made.strides.back() = stride;
    } else {
      made.shape.push_back(count);
      made.strides.push_back(stride);
    }
  }
  return made;
}

}  // namespace vkconv
