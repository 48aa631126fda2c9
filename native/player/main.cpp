// Plays folders that `vkconv pack` wrote, on a device where vkconv itself does not run: docs/format.md has their format.
// The folder comes from someone you trust: its shaders run as they are.
#include <sys/stat.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>

#include "json.hpp"
#include "supervise.hpp"

namespace {

const char* kUsage =
    "usage: player FOLDER [OPTIONS]        plays the packs in it; exit code 0 right, 1 wrong, 2 cannot be played, 3 no device\n"
    "       player --info [--device SEL]   prints the device's facts, for vkconv devices import\n"
    "  --device SEL        place in Vulkan's list, or a part of the name (0)\n"
    "  --packs FIRST[:N]   play N packs, or all, from this one of the index on\n"
    "  --repeat N          runs of the same commands whose bytes are compared (2)\n"
    "  --stop-at-first     end a model with the first node that is wrong\n"
    "  --bench             also measure: --min-time S (0.2), --runs N (10), --warmup N (until stable), --cooldown S (0)\n"
    "  --cpu N             run on this processor alone, so that no other clock is met\n"
    "  --results FILE      write a line of JSON for each pack as it ends; --json prints them\n"
    "  --got DIR           write outputs that are wrong there; --keep writes all of them\n"
    "  --compile-limit S   seconds that one pipeline may compile (120)\n"
    "  --run-limit S       seconds that one run may take (60)\n"
    "  --validate          load the Khronos validation layer; what it reports is wrong\n";

struct Usage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

double seconds(const std::string& name, const std::string& text, double least) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !std::isfinite(value) || value < least || value > 1e6)
    throw Usage(name + " '" + text + "' is no number of seconds" + (least > 0 ? " above 0" : ""));
  return value;
}

size_t count(const std::string& name, const std::string& text, size_t least) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > 1u << 30)
    throw Usage(name + " '" + text + "' is no whole number from " + std::to_string(least) + " on");
  return value;
}

player::Options parse(int argc, char** argv) {
  player::Options made;
  using Take = std::function<void(const std::string&, const std::string&)>;
  const std::map<std::string, Take> valued = {
      {"--device", [&](auto&, auto& v) { made.device = v; }},
      {"--results", [&](auto&, auto& v) { made.results = v; }},
      {"--got", [&](auto&, auto& v) { made.got = v; }},
      {"--repeat", [&](auto& n, auto& v) { made.repeat = count(n, v, 1); }},
      {"--runs", [&](auto& n, auto& v) { made.timing.runs = static_cast<int64_t>(count(n, v, 1)); }},
      {"--warmup", [&](auto& n, auto& v) { made.timing.warmup = static_cast<int64_t>(count(n, v, 0)); }},
      {"--cpu", [&](auto& n, auto& v) { made.cpu = count(n, v, 0); }},
      {"--min-time", [&](auto& n, auto& v) { made.timing.min_time_s = seconds(n, v, 1e-4); }},
      {"--cooldown", [&](auto& n, auto& v) { made.timing.cooldown_s = seconds(n, v, 0); }},
      {"--compile-limit", [&](auto& n, auto& v) { made.compile_limit_s = seconds(n, v, 1e-3); }},
      {"--run-limit", [&](auto& n, auto& v) { made.run_limit_s = seconds(n, v, 1e-3); }},
      {"--packs",
       [&](auto& n, auto& v) {
         const size_t colon = v.find(':');
         made.first = count(n, v.substr(0, colon), 0);
         if (colon != std::string::npos) made.count = count(n, v.substr(colon + 1), 1);
       }},
  };
  const std::map<std::string, bool*> plain = {{"--info", &made.info}, {"--bench", &made.bench},       {"--json", &made.json},
                                              {"--keep", &made.keep}, {"--validate", &made.validate}, {"--stop-at-first", &made.stop_at_first}};
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i], value;
    const size_t equals = word.find('=');
    const bool joined = word.compare(0, 2, "--") == 0 && equals != std::string::npos;
    if (joined) value = word.substr(equals + 1), word.resize(equals);
    if (const auto flag = plain.find(word); flag != plain.end()) {
      if (joined) throw Usage(word + " takes no value");
      *flag->second = true;
    } else if (const auto option = valued.find(word); option != valued.end()) {
      if (!joined && ++i == argc) throw Usage(word + " needs a value");
      option->second(word, joined ? value : argv[i]);
    } else if (!word.empty() && word[0] == '-') {
      throw Usage("there is no option " + word);
    } else if (!made.folder.empty()) {
      throw Usage("one folder is played at a time: " + made.folder + ", and not " + word + " too");
    } else {
      made.folder = word;
    }
  }
  if (made.folder.empty() != made.info) throw Usage(made.info ? "--info plays no folder" : "name a folder that vkconv pack wrote");
  if (made.keep && made.got.empty()) throw Usage("--keep needs --got DIR");
  if (!made.got.empty() && mkdir(made.got.c_str(), 0755) && errno != EEXIST) throw Usage("--got " + made.got + " cannot be made");
  return made;
}

int info(const player::Options& options) {
  try {
    std::printf("%s\n", player::Device(options.device, false).info_json().c_str());
    return 0;
  } catch (const player::Refused& error) {
    std::fprintf(stderr, "%s\n", error.what());
  } catch (const player::Failed& error) {
    std::fprintf(stderr, "%s\n", error.what.c_str());
  }
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const player::Options options = parse(argc, argv);
    return options.info ? info(options) : player::supervise(options);
  } catch (const Usage& error) {
    std::fprintf(stderr, "player: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::bad_alloc&) {
    std::fputs("player: this machine has too little memory for it\n", stderr);
    return 2;
  }
}
