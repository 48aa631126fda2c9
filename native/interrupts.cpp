#include "interrupts.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#ifdef __linux__
#include <sched.h>
#endif

namespace vkconv {
namespace {

constexpr int64_t kRereadNs = 1'000'000'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The first line of a file; nothing where it cannot be read.
std::string first_line(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  char text[4096];  // more than a list of every other of kMostCpus
  const ssize_t count = ::read(file, text, sizeof text);
  close(file);
  return std::string(text, std::find(text, text + std::max<ssize_t>(count, 0), '\n'));
}

// The numbers of a list such as "0-2,7", below `end`; those before what is no such list.
std::vector<int> listed(const std::string& list, int end) {
  std::vector<int> numbers;
  const char* at = list.c_str();
  while (*at >= '0' && *at <= '9') {
    char* next = nullptr;
    const long first = std::strtol(at, &next, 10);
    const long last = *next == '-' ? std::strtol(next + 1, &next, 10) : first;
    for (long number = first; number <= std::min<long>(last, end - 1); ++number) numbers.push_back(static_cast<int>(number));
    at = *next == ',' ? next + 1 : next;
  }
  return numbers;
}

// The interrupts of a PCI device: of its messages, else the one of its pin.
std::vector<std::string> interrupts_of(const std::string& device) {
  std::vector<std::string> found;
  if (const std::unique_ptr<DIR, int (*)(DIR*)> folder{opendir((device + "/msi_irqs").c_str()), closedir})
    while (const dirent* entry = readdir(folder.get()))
      if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9') found.emplace_back(entry->d_name);
  if (!found.empty()) return found;
  const std::string pin = first_line(device + "/irq");
  if (!pin.empty() && pin != "0") found.push_back(pin);
  return found;
}

}  // namespace

Interrupts::Interrupts(std::string address, std::string root) : address_(std::move(address)), root_(std::move(root)) { read(); }

bool Interrupts::takes(int cpu) const noexcept {
  const auto at = static_cast<size_t>(cpu);
  return cpu >= 0 && at < kMostCpus && (taken_[at / kWordBits].load(std::memory_order_relaxed) >> at % kWordBits & 1) != 0;
}

std::vector<int> Interrupts::cpus() const {
  std::vector<int> found;
  for (int cpu = 0; cpu < static_cast<int>(kMostCpus); ++cpu)
    if (takes(cpu)) found.push_back(cpu);
  return found;
}

std::vector<int> Interrupts::elsewhere(const std::vector<int>& allowed) const {
  std::vector<int> left;
  for (const int cpu : allowed)
    if (!takes(cpu)) left.push_back(cpu);
  if (2 * left.size() < allowed.size()) left.clear();
  return left;
}

bool Interrupts::step_aside() noexcept {
#ifdef __linux__
  if (!takes(sched_getcpu())) return false;
  static_assert(CPU_SETSIZE >= kMostCpus);
  cpu_set_t before;
  if (sched_getaffinity(0, sizeof before, &before) != 0) return false;
  try {
    std::vector<int> allowed;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &before)) allowed.push_back(cpu);
    const auto left = elsewhere(allowed);
    if (left.empty()) return false;
    cpu_set_t aside;
    CPU_ZERO(&aside);
    for (const int cpu : left) CPU_SET(cpu, &aside);
    if (sched_setaffinity(0, sizeof aside, &aside) != 0) return false;  // it has moved when this returns
    sched_setaffinity(0, sizeof before, &before);
    ++moves_;
    return true;
  } catch (...) {  // no memory
  }
#endif
  return false;
}

void Interrupts::read() noexcept {
  read_ns_ = now_ns();
  try {
    std::array<uint64_t, kMostCpus / kWordBits> taken{};
    for (const std::string& interrupt : interrupts_of(root_ + "/sys/bus/pci/devices/" + address_)) {
      const std::string folder = root_ + "/proc/irq/" + interrupt;
      std::string list = first_line(folder + "/effective_affinity_list");  // of those that it may go to, where it goes
      if (list.empty()) list = first_line(folder + "/smp_affinity_list");
      for (const int cpu : listed(list, kMostCpus))
        taken[static_cast<size_t>(cpu) / kWordBits] |= uint64_t{1} << static_cast<size_t>(cpu) % kWordBits;
    }
    for (size_t i = 0; i < taken.size(); ++i) taken_[i].store(taken[i], std::memory_order_relaxed);
  } catch (...) {  // no memory: what was read before stands
  }
}

void Interrupts::refresh() noexcept {
  int64_t before = read_ns_.load(std::memory_order_relaxed);
  const int64_t now = now_ns();
  // One thread reads.
  if (now - before >= kRereadNs && read_ns_.compare_exchange_strong(before, now, std::memory_order_relaxed)) read();
}

}  // namespace vkconv
