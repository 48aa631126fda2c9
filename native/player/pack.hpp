// A pack on the device: its buffers and pipelines, its runs.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compare.hpp"
#include "device.hpp"
#include "plan.hpp"

namespace player {

// Files of a folder of packs. All but the index are named by the SHA-256 of what they hold, and refused where it differs.
class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  Bytes read(const std::string& name) const;
  Index index() const;
  Plan plan(const std::string& name) const;
  Wanted wanted(const Check& check, const Tensor& output) const;

 private:
  std::string path_;
};

// Told of what is begun: `compile NAME`, `run NAME`. Whoever hears nothing for too long ends the process.
using Tell = std::function<void(const std::string& phase, const std::string& what)>;

struct Recording {
  VkCommandBuffer buffer = VK_NULL_HANDLE;
  VkDescriptorPool sets = VK_NULL_HANDLE;
  VkQueryPool queries = VK_NULL_HANDLE;
  uint32_t stamps = 0;
};

class Pack {
 public:
  // Refused where the plan, its files or its needs are wrong; what the driver answers with an error is Failed.
  Pack(Device& device, const Folder& folder, Plan plan, const Tell& tell, uint64_t limit_ns, bool cached);
  ~Pack();
  Pack(const Pack&) = delete;
  Pack& operator=(const Pack&) = delete;

  const Plan plan;
  double compile_us = 0, prepack_us = -1;  // -1: nothing is prepacked, or it cannot be timed

  void input(size_t number, const Bytes& bytes);
  void poison();  // NaN bits in all that a run is to write
  void run();
  Bytes output(size_t number) const;
  Bytes value(size_t number);

  // Commands for replay; a timestamp at the start and after every `every` commands that are no barrier (0: none).
  Recording record(const std::vector<Command>& commands, size_t every);
  // Microseconds between the timestamps, and of the submission on the host's clock.
  std::vector<double> submit(const Recording& recording, double* wall_us);
  // The dispatches alone, so many times, each after all before.
  std::vector<Command> repeated(size_t times) const;
  std::vector<Command> downloads() const;

 private:
  Device& device_;
  const Folder& folder_;
  uint64_t limit_ns_;
  std::vector<Buffer> buffers_;
  std::vector<Pipeline> pipelines_;
  std::vector<Recording> made_;
  Recording run_;
  std::map<uint32_t, VkImageLayout> layouts_;  // of textures, as what is recorded leaves them; those at rest are not there

  void barrier(VkCommandBuffer buffer, VkPipelineStageFlags stages, VkAccessFlags accesses) const;
  void dispatch(VkCommandBuffer buffer, VkDescriptorPool sets, const Command& command);
  // Brings a texture into a layout; what it holds at rest, which is to be sampled, is dropped where it leaves that.
  void transition(VkCommandBuffer buffer, uint32_t number, VkImageLayout layout);
  void rest(VkCommandBuffer buffer);  // all textures
  void load();
  void release();
};

}  // namespace player
