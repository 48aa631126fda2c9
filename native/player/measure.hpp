// How long a pack takes on the device's own clock, measured as vkconv bench does on its own machine.
#pragma once

#include <string>
#include <vector>

#include "pack.hpp"

namespace player {

struct Timing {
  double min_time_s = 0.2, cooldown_s = 0;
  int64_t runs = 10, warmup = -1;  // warmup -1: until the time is stable
};

struct Times {
  std::vector<double> us;  // of an execution, one for each timestamp, in the order they were taken
  size_t together = 1, submissions = 0;
  double wall_us = 0, wall_repeated_us = 0;  // a submission of one; an execution's share of one of many
  bool gpu_clock = true;
  std::vector<std::pair<std::string, double>> dispatches;  // by name, the median of each
};

Times measure(Pack& pack, const Timing& timing);
std::string times_json(const Pack& pack, const Times& times);
double percentile(std::vector<double> values, double share);  // between neighbours, as numpy has it

}  // namespace player
