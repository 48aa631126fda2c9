#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "json.hpp"

namespace player {
namespace {

// GPU time that a submission should take, so that submitting costs little beside it, and its most dispatches; time from
// one timestamp to the next; when a warm-up is stable; when slow packs stop. As vkconv/bench/engine.py has them.
constexpr double kBatchUs = 5000, kStampedUs = 100, kStableRatio = 1.02, kPatience = 4;
constexpr size_t kBatchDispatches = 512, kStableBatches = 3, kFewRuns = 3, kAloneRuns = 9, kMostSamples = 4096;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One execution and the times of each: by the device's clock, or by the host's where it has none.
std::vector<double> spans(Pack& pack, const Recording& recording, size_t size, size_t together, double* wall_us) {
  std::vector<double> found = pack.submit(recording, wall_us);
  if (found.empty()) return {*wall_us / static_cast<double>(size)};
  for (double& span : found) span /= static_cast<double>(together);
  return found;
}

size_t dispatches(const std::vector<Command>& commands) {
  return static_cast<size_t>(std::count_if(commands.begin(), commands.end(), [](const Command& c) { return c.kind != Command::Kind::Barrier; }));
}

void warm_up(Pack& pack, const Recording& batch, size_t size, size_t together, const Timing& timing) {
  double wall_us = 0;
  if (timing.warmup >= 0) {
    for (size_t done = 0; done < static_cast<size_t>(timing.warmup); done += size) spans(pack, batch, size, together, &wall_us);
    return;
  }
  std::vector<double> medians;
  for (const double ends = seconds() + timing.min_time_s; seconds() < ends;) {
    medians.push_back(percentile(spans(pack, batch, size, together, &wall_us), 0.5));
    if (medians.size() < kStableBatches) continue;
    const auto [least, most] = std::minmax_element(medians.end() - kStableBatches, medians.end());
    if (*most <= kStableRatio * *least) return;
  }
}

}  // namespace

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

Times measure(Pack& pack, const Timing& timing) {
  Times times;
  std::this_thread::sleep_for(std::chrono::duration<double>(timing.cooldown_s));
  const std::vector<Command> once = pack.plan.repeats ? pack.repeated(1) : pack.plan.run;
  const size_t work = dispatches(once);
  if (!work) return times;
  const Recording single = pack.record(once, work);
  times.gpu_clock = single.stamps > 0;
  double wall_us = 0;
  const double first = spans(pack, single, 1, 1, &wall_us)[0], second = spans(pack, single, 1, 1, &wall_us)[0];
  const double guess_us = std::max(std::min(first, second), 1.0);
  size_t size = 1, together = 1;
  if (pack.plan.repeats) {
    size = std::clamp<size_t>(static_cast<size_t>(std::llround(std::min(kBatchUs / guess_us, 1e6))), 1, std::max<size_t>(1, kBatchDispatches / work));
    together = std::clamp<size_t>(static_cast<size_t>(std::llround(kStampedUs / guess_us)), 1, size);
    size -= size % together;
  }
  const Recording batch = size > 1 ? pack.record(pack.repeated(size), work * together) : single;
  warm_up(pack, batch, size, together, timing);
  std::vector<double> walls;
  double submitted_us = 0;
  for (const double least_us = timing.min_time_s * 1e6;;) {
    for (const double span : spans(pack, batch, size, together, &wall_us)) times.us.push_back(span);
    walls.push_back(wall_us / static_cast<double>(size));
    submitted_us += wall_us;
    const bool enough = times.us.size() >= static_cast<size_t>(timing.runs) && submitted_us >= least_us;
    if (enough || (times.us.size() >= kFewRuns && submitted_us >= kPatience * least_us)) break;
  }
  times.together = together;
  times.submissions = walls.size();
  times.wall_repeated_us = times.wall_us = percentile(walls, 0.5);
  if (size > 1) {
    std::vector<double> alone;
    for (size_t i = 0; i < kAloneRuns; ++i) spans(pack, single, 1, 1, &wall_us), alone.push_back(wall_us);
    times.wall_us = percentile(alone, 0.5);
  }
  if (!times.gpu_clock) return times;
  const Recording each = pack.record(once, 1);
  std::vector<std::vector<double>> of(work);
  for (size_t run = 0; run < kFewRuns; ++run) {
    const std::vector<double> found = pack.submit(each, &wall_us);
    for (size_t i = 0; i < found.size() && i < work; ++i) of[i].push_back(found[i]);
  }
  size_t place = 0;
  for (const Command& c : once)
    if (c.kind != Command::Kind::Barrier) times.dispatches.emplace_back(c.name, percentile(of[place++], 0.5));
  return times;
}

std::string times_json(const Pack& pack, const Times& times) {
  std::vector<std::string> dispatches, samples;
  for (const auto& [name, us] : times.dispatches) dispatches.push_back(Object().text("name", name).real("us", us).str());
  for (size_t i = 0; i < std::min(times.us.size(), kMostSamples); ++i) samples.push_back(number(times.us[i]));
  Object made;
  if (!times.us.empty()) {
    const double median = percentile(times.us, 0.5);
    std::vector<double> off;
    for (const double us : times.us) off.push_back(std::fabs(us - median));
    made.text("clock", times.gpu_clock ? "device" : "host").real("us_median", median).real("us_min", percentile(times.us, 0))
        .real("us_p90", percentile(times.us, 0.9)).real("us_p99", percentile(times.us, 0.99))
        .real("us_spread_percent", median > 0 ? 100 * percentile(off, 0.5) / median : 0)
        .whole("runs", times.us.size() * times.together).whole("together", times.together).whole("submissions", times.submissions)
        .real("us_wall", times.wall_us).real("us_wall_repeated", times.wall_repeated_us)
        .raw("samples_us", list(samples)).raw("dispatches", list(dispatches));
  }
  made.real("us_compile", pack.compile_us);
  if (pack.prepack_us >= 0) made.real("us_prepack", pack.prepack_us);
  return made.str();
}

}  // namespace player
