// Damaged plans for the player's reader: `player_plans SEED COUNT FILE...` reads so many mutations of plans and indices, or
// as many as it comes to before SIGTERM, and prints what came of them as JSON. A plan that is not refused keeps to what
// the format promises; sanitizers tell of the rest. What takes more than 5 s of processor, or 1 GiB of memory where
// ASAN_OPTIONS has hard_rss_limit_mb, ends it. What ended it is the last line of stderr, as hex.
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "../../native/player/plan.hpp"

namespace {

constexpr int kLimitS = 5;

std::string input;  // what is being read
volatile sig_atomic_t ended = 0;

void tell(int) {
  for (const char c : input) {
    const auto byte = static_cast<unsigned char>(c);
    const char digits[] = {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    if (write(2, digits, 2) < 0) break;
  }
  if (write(2, "\n", 1) < 0) _exit(4);
  _exit(3);
}

void end(int) { ended = 1; }

void mutate(std::string& text, const std::vector<std::string>& files, std::mt19937_64& random) {
  static const char* const words[] = {"0", "-1", "18446744073709551615", "4294967296", "99999999999999999999", "nan", "../x", "/x", " # ", "\n", "x", "each", "f64", "end", "buffer", "node", "dispatch 0 ", "70368744177664", "scalar", "1x0x9", "value", "check 0 ", "subgroup 0 ", "1e-400"};
  for (int left = 1 + static_cast<int>(random() % 4); left > 0 && !text.empty(); --left) {
    const size_t at = random() % text.size(), many = 1 + random() % 40;
    switch (random() % 7) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, many); break;
      case 2: text.insert(at, words[random() % std::size(words)]); break;
      case 3: text.insert(random() % text.size(), text.substr(at, many * 4)); break;
      case 4:
        if (random() % 4 == 0) text.resize(at);
        break;
      case 5: {  // a line of another file
        const std::string& other = files[random() % files.size()];
        const size_t from = other.find('\n', random() % other.size()), to = text.find('\n', at);
        if (from != std::string::npos && to != std::string::npos) text.insert(to, other, from, other.find('\n', from + 1) - from);
        break;
      }
      default: {  // another number in the place of one
        const size_t from = text.find_first_of("0123456789", at);
        if (from == std::string::npos) break;
        size_t to = from;
        while (to < text.size() && text[to] >= '0' && text[to] <= '9') ++to;
        text.replace(from, to - from, words[random() % 5]);
      }
    }
  }
}

void hold(bool kept, const char* what) {
  if (kept) return;
  std::fprintf(stderr, "a plan was read in which %s\n", what);
  std::abort();
}

void look(const player::Plan& plan) {
  using player::Command;
  for (const auto* commands : {&plan.load, &plan.run})
    for (const Command& command : *commands) {
      hold(command.kind != Command::Kind::Dispatch || command.regions.size() == plan.pipelines.at(command.pipeline).bindings, "a dispatch has other bindings than its pipeline");
      for (const player::Region& r : command.regions) hold(r.offset <= plan.buffers.at(r.buffer).nbytes && r.nbytes <= plan.buffers[r.buffer].nbytes - r.offset, "a place lies outside of its buffer");
    }
  for (const auto* tensors : {&plan.inputs, &plan.outputs, &plan.values})
    for (const player::Tensor& t : *tensors) hold(t.count * player::width_of(t.dtype) <= t.at.nbytes, "elements are more than their place");
  for (const player::Check& check : plan.checks) hold(check.output < plan.outputs.size(), "a check is of no output");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || std::atoll(argv[2]) < 1) return std::fprintf(stderr, "usage: player_plans SEED COUNT FILE...\n"), 2;
  const long long count = std::atoll(argv[2]);
  std::vector<std::string> files;
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (files.back().empty()) return std::fprintf(stderr, "%s is empty\n", argv[i]), 2;
  }
  signal(SIGTERM, end);
  signal(SIGPROF, tell);
  signal(SIGABRT, tell);
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const auto now_s = [] {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const double start = now_s();
  double before = start, slowest = 0;
  long long read = 0, done = 0;
  for (; done < count && !ended; ++done) {
    if (done % 256 == 0) {
      const itimerval limit{{0, 0}, {kLimitS, 0}};
      setitimer(ITIMER_PROF, &limit, nullptr);
    }
    const bool whole = done < static_cast<long long>(files.size());  // each as it is, first
    const std::string& file = files[whole ? static_cast<size_t>(done) : random() % files.size()];
    input = file;
    if (!whole) mutate(input, files, random);
    try {
      if (file.compare(0, 12, "vkconv-packs") != 0) look(player::parse_plan(input));
      else player::parse_index(input);
      ++read;
    } catch (const player::Refused&) {
    }
    const double after = now_s();
    slowest = after - before > slowest ? after - before : slowest;
    before = after;
  }
  std::printf("{\"mutants\": %lld, \"taken\": %lld, \"slowest_s\": %.3f, \"s\": %.1f}\n", done, read, slowest, now_s() - start);
}
