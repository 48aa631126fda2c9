// The Python classes Device, Buffer, Image and Pipeline.
#pragma once

#include "core.hpp"

#include <kompute/Kompute.hpp>
#include <pybind11/numpy.h>

#include <array>
#include <optional>
#include <utility>
#include <variant>

namespace vkconv {

class Buffer : public Closable {
 public:
  Buffer(const CorePtr& core, uint64_t nbytes, const std::string& kind);
  explicit Buffer(std::shared_ptr<BufferCore> imported);

  uint64_t nbytes() const { return nbytes_; }
  const std::string& kind() const { return kind_; }
  bool coherent() const;
  // Makes what the host wrote visible to later submissions, and what the device wrote visible to the host.
  void flush() const;
  void invalidate() const;
  // Copies by `threads` of the host into the first bytes, or out of them, with what flush() and invalidate() do.
  // On the way the array's floats of 32 bits become those of the type `narrowed`, or are made of those of `widened`.
  void write(const py::array& data, unsigned threads, const std::string& narrowed) const;
  void read(py::array& out, unsigned threads, const std::string& widened) const;
  const std::shared_ptr<BufferCore>& core(const char* call) const;
  void release() override { core_.reset(); }

 private:
  // What a flush must name; nothing where the memory is coherent.
  std::optional<VkMappedMemoryRange> incoherent_range(const char* call) const;

  uint64_t nbytes_;
  std::string kind_;
  std::shared_ptr<BufferCore> core_;
};

// The exporter behind Buffer.view: keeps the mapping alive as long as a memoryview or an array looks at it.
struct Mapping {
  std::shared_ptr<BufferCore> core;
};

class Image : public Closable {
 public:
  // A `depth` of 0 makes an image of two dimensions.
  Image(const CorePtr& core, uint32_t width, uint32_t height, uint32_t depth, const std::string& format);

  const std::array<uint32_t, 3>& extent() const { return extent_; }
  const std::string& format() const { return format_; }
  uint64_t nbytes() const { return nbytes_; }
  const std::shared_ptr<ImageCore>& core(const char* call) const;
  void release() override { core_.reset(); }

 private:
  std::array<uint32_t, 3> extent_;
  std::string format_;
  uint64_t nbytes_ = 0;  // what the driver takes for it
  std::shared_ptr<ImageCore> core_;
};

class Pipeline : public Closable {
 public:
  // So many storage buffers, or one letter a binding: b a storage buffer, s a sampled image, i a storage image.
  using Bindings = std::variant<uint32_t, std::string>;

  Pipeline(const CorePtr& core, const std::string& spirv, const Bindings& bindings, uint32_t push_bytes,
           const std::vector<uint32_t>& spec, uint32_t subgroup_size);

  const std::shared_ptr<PipelineCore>& core(const char* call) const;
  void release() override { core_.reset(); }

 private:
  std::shared_ptr<PipelineCore> core_;
};

class Recording;
class Download;
class Upload;

class Device : public Shared {
 public:
  // `interrupts` in place of those that Linux tells of.
  Device(size_t index, const std::string& pipeline_cache, const std::vector<std::string>& disable, InterruptsPtr interrupts);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  bool closed() const { return core_ == nullptr; }
  py::dict facts() const;
  py::dict enabled() const;
  py::list memory() const;
  std::shared_ptr<kp::Manager> manager();
  std::string pipeline_cache() const;
  std::string merge_pipeline_cache(const std::string& blob) const;
  bool pipeline_cache_loaded() const { return core("Device.pipeline_cache_loaded")->cache_loaded; }
  std::shared_ptr<Buffer> buffer(uint64_t nbytes, const std::string& kind);
  // The pages of the host that an array lies in as a buffer of kind "imported", and the array's first byte in it; nothing
  // where the device or its driver takes none of them. The array is kept for as long as the device may use it.
  std::optional<std::pair<std::shared_ptr<Buffer>, uint64_t>> imported(const py::array& data);
  std::shared_ptr<Image> image(uint32_t width, uint32_t height, uint32_t depth, const std::string& format);
  std::shared_ptr<Pipeline> pipeline(const std::string& spirv, const Pipeline::Bindings& bindings, uint32_t push_bytes,
                                     const std::vector<uint32_t>& spec, uint32_t subgroup_size);
  std::shared_ptr<Recording> recording(uint32_t timestamps);
  std::shared_ptr<Upload> upload(const Buffer& staging, const Buffer& target, uint64_t nbytes, uint64_t chunk_bytes);
  std::shared_ptr<Download> download(const Buffer& source, const Buffer& staging, uint64_t nbytes, uint64_t chunk_bytes);
  std::vector<int> interrupt_cpus() const;
  size_t abandoned() const;
  bool wait_idle(uint64_t timeout_ns);
  void close();

 private:
  const CorePtr& core(const char* call) const;
  void adopt(const std::shared_ptr<Closable>& child);

  CorePtr core_;
  std::shared_ptr<kp::Manager> manager_;
  std::vector<std::string> features_;
  std::vector<std::string> extensions_;
  std::vector<std::weak_ptr<Closable>> children_;
};

// Kompute's objects for a device; each keeps `core` alive for as long as Kompute may call Vulkan through it.
std::shared_ptr<vk::Device> kompute_device(const CorePtr& core);
std::shared_ptr<vk::PhysicalDevice> kompute_physical_device(const CorePtr& core);
std::shared_ptr<vk::Queue> kompute_queue(const CorePtr& core);

// [{size_bytes, budget_bytes, usage_bytes}], the last two empty without VK_EXT_memory_budget.
struct HeapState {
  uint64_t size_bytes = 0;
  bool known = false;
  uint64_t budget_bytes = 0;
  uint64_t usage_bytes = 0;
};
std::vector<HeapState> heap_states(const Core& core);

}  // namespace vkconv
