// A pack played: each output held to what is expected, each run to the bytes of the first, then the time.
#pragma once

#include <optional>
#include <string>

#include "measure.hpp"

namespace player {

struct Options {
  std::string folder, device = "0", results, got;
  bool validate = false, bench = false, keep = false, info = false, json = false, stop_at_first = false;
  size_t repeat = 2;
  double compile_limit_s = 120, run_limit_s = 60;
  Timing timing;
  size_t first = 0, count = SIZE_MAX;  // which packs of the index
  std::optional<size_t> cpu;           // the one processor to run on
};

// The result of one pack as a line of JSON; "status" tells how it ended, "dead" that the process can play no other.
std::string play(Device& device, const Folder& folder, const std::string& name, const std::string& label,
                 const Options& options, const Tell& tell, bool* dead);

}  // namespace player
