// The CPUs that take a device's interrupts, which threads step aside from: the handler takes the CPU from a thread that polls
// or copies there, and Linux leaves the thread where it is for thousands of runs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace vkconv {

// Nothing here fails: where Linux does not tell of interrupts, or of threads, these stay where they are.
class Interrupts {
 public:
  // Of the PCI device at an address as Linux writes it, 0000:01:00.0; files are looked up below `root`.
  explicit Interrupts(std::string address, std::string root = "");
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Those that take interrupts, as last read.
  std::vector<int> cpus() const;
  // Of the CPUs that a thread may use, those that it goes to from one that takes interrupts. None where that leaves less than
  // half of them: interrupts that are spread over the CPUs are nobody's to avoid.
  std::vector<int> elsewhere(const std::vector<int>& allowed) const;
  // Moves the calling thread to another CPU if it is on one that takes interrupts and may leave it; what it may use stays as
  // it was. Elsewhere this takes some ten nanoseconds. Whether it moved.
  bool step_aside() noexcept;
  // How often threads did.
  uint64_t moves() const { return moves_; }
  // Reads the CPUs anew: what balances interrupts moves them.
  void read() noexcept;
  // The same where they were read a second ago or more.
  void refresh() noexcept;

 private:
  static constexpr size_t kMostCpus = 1024;  // of a cpu_set_t
  static constexpr size_t kWordBits = 64;

  bool takes(int cpu) const noexcept;

  const std::string address_;
  const std::string root_;
  std::array<std::atomic<uint64_t>, kMostCpus / kWordBits> taken_{};  // a bit a CPU
  std::atomic<int64_t> read_ns_{0};
  std::atomic<uint64_t> moves_{0};
};

// Null for a device that is on no PCI bus.
using InterruptsPtr = std::shared_ptr<Interrupts>;

}  // namespace vkconv
