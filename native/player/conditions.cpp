#include "conditions.hpp"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "json.hpp"

namespace player {
namespace {

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> found;
  if (DIR* open = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(open))
      if (entry->d_name[0] != '.') found.push_back(folder + "/" + entry->d_name);
    closedir(open);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// A whole number in a file; false where there is none.
bool value_of(const std::string& path, double* value) {
  const std::string line = line_of(path);
  char* end = nullptr;
  *value = std::strtod(line.c_str(), &end);
  return !line.empty() && end != line.c_str();
}

}  // namespace

std::string conditions_json() {
  Object found;
  double value = 0, hottest = -1;
  std::string where;
  for (const std::string& zone : entries("/sys/class/thermal"))
    if (value_of(zone + "/temp", &value) && value > hottest && value < 200000) hottest = value, where = line_of(zone + "/type");
  if (hottest > 0) found.real("hottest_celsius", hottest / 1000).text("hottest_zone", where);  // in thousandths
  for (const std::string& supply : entries("/sys/class/power_supply")) {
    if (line_of(supply + "/type") != "Battery") continue;
    if (value_of(supply + "/capacity", &value)) found.real("battery_percent", value);
    if (value_of(supply + "/temp", &value)) found.real("battery_celsius", value / 10);  // in tenths
    const std::string status = line_of(supply + "/status");
    if (!status.empty()) found.text("battery_status", status);
    break;
  }
  if (value_of("/sys/class/kgsl/kgsl-3d0/gpuclk", &value)) {
    found.real("gpu_mhz", value / 1e6);  // Adreno's own driver
  } else {
    for (const std::string& clock : entries("/sys/class/devfreq")) {
      const bool gpu = clock.find("gpu") != std::string::npos || clock.find("mali") != std::string::npos || clock.find("kgsl") != std::string::npos;
      if (gpu && value_of(clock + "/cur_freq", &value)) found.real("gpu_mhz", value / 1e6);
    }
  }
  if (value_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", &value)) found.real("cpu0_mhz", value / 1e3);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (!sched_getaffinity(0, sizeof mine, &mine) && CPU_COUNT(&mine) == 1)
    for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mine)) found.whole("only_cpu", cpu);
  return found.str();
}

}  // namespace player
