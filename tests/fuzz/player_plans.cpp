// Damaged plans for the player's reader: `player_plans COUNT PLAN...` reads so many mutations of plans. A plan that is not
// refused keeps to what the format promises; sanitizers tell of the rest.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "../../native/player/plan.hpp"

namespace {

std::string mutated(std::string text, std::mt19937_64& random) {
  static const char* const words[] = {"0", "-1", "18446744073709551615", "4294967296", "99999999999999999999", "nan", "../x", "/x", " # ", "\n", "x", "each", "f64", "end", "buffer", "node", "dispatch 0 "};
  for (int left = 1 + static_cast<int>(random() % 4); left > 0 && !text.empty(); --left) {
    const size_t at = random() % text.size(), many = 1 + random() % 40;
    switch (random() % 6) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, many); break;
      case 2: text.insert(at, words[random() % std::size(words)]); break;
      case 3: text.insert(random() % text.size(), text.substr(at, many * 4)); break;
      case 4: text.resize(at); break;
      default: {  // another number in the place of one
        size_t from = text.find_first_of("0123456789", at);
        if (from == std::string::npos) break;
        size_t to = from;
        while (to < text.size() && text[to] >= '0' && text[to] <= '9') ++to;
        text.replace(from, to - from, words[random() % 5]);
      }
    }
  }
  return text;
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
  const long count = argc > 2 ? std::atol(argv[1]) : 0;
  std::vector<std::string> plans;
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    plans.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (count < 1) return std::fprintf(stderr, "usage: player_plans COUNT PLAN...\n"), 2;
  std::mt19937_64 random(1);
  long read = 0;
  for (long i = 0; i < count; ++i) {
    const std::string text = mutated(plans[random() % plans.size()], random);
    try {
      if (i % 8) look(player::parse_plan(text));
      else player::parse_index(text);
      ++read;
    } catch (const player::Refused&) {
    }
  }
  std::printf("%ld of %ld damaged plans were read, the others refused\n", read, count);
}
