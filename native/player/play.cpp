#include "play.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>

#include "conditions.hpp"
#include "json.hpp"
#include "sha256.hpp"

namespace player {
namespace {

std::string hash_of(const Bytes& bytes) { return sha256_hex(bytes.data(), bytes.size()); }

std::string problem_of(const Compared& c, const Tensor& tensor, const std::string& against) {
  if (c.ok()) return "";
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, " is %.9g, %s %.9g, off by %.3g, %.3g is allowed; ", c.got, against.c_str(), c.want, std::fabs(c.got - c.want), c.allowed);
  return tensor.name + index_text(c.worst, tensor.dims) + numbers + std::to_string(c.wrong) + " of " + std::to_string(tensor.count) + " elements are wrong: " + c.places;
}

std::string json_of(const Compared& c, const Tensor& tensor, const Bytes& got, const std::string& problem) {
  Object made;
  made.text("output", tensor.name).truth("ok", problem.empty()).text("problem", problem).real("max_abs", c.max_abs).real("max_rel", c.max_rel).real("relative", c.relative)
      .whole("wrong", c.wrong).whole("elements", tensor.count).whole("nan", c.nan).whole("inf", c.inf).text("sha256", hash_of(got));
  if (tensor.count) made.whole("worst", c.worst).real("got", c.got).real("expected", c.want).real("allowed", c.allowed);
  if (c.wrong) made.text("places", c.places);
  return made.str();
}

class Player {
 public:
  Player(Device& device, const Folder& folder, const Options& options, const Tell& tell)
      : device_(device), folder_(folder), options_(options), tell_(tell), limit_ns_(static_cast<uint64_t>(options.run_limit_s * 1e9)) {}

  Object result;
  std::string problem;

  void play(const std::string& name) {
    const uint64_t before = device_.messages();
    Pack pack(device_, folder_, folder_.plan(name), tell_, limit_ns_, false);
    poisoned_run(pack, "run 1");
    const std::vector<std::string> outputs = check(pack, name, "");
    result.raw("outputs", list(outputs));
    if (pack.plan.nodes.empty()) repeat_outputs(pack);
    else model(pack, name);
    if (!pack.plan.shared.empty()) shared(pack);
    else if (options_.bench && problem.empty()) times(pack);
    if (device_.messages() > before) wrong("the validation layer reports " + std::to_string(device_.messages() - before) + ": " + device_.first_message());
  }

 private:
  Device& device_;
  const Folder& folder_;
  const Options& options_;
  const Tell& tell_;
  uint64_t limit_ns_;

  void wrong(const std::string& what) {
    if (problem.empty()) problem = what;
  }

  void poisoned_run(Pack& pack, const std::string& what) {
    tell_("run", pack.plan.label + ", " + what);
    pack.poison();
    pack.run();
  }

  // Every check of a plan on the outputs as they are; outputs that are wrong are kept as files.
  std::vector<std::string> check(Pack& pack, const std::string& name, const std::string& prefix, std::string* said = nullptr) {
    std::vector<std::string> found;
    for (const Check& check : pack.plan.checks) {
      const Tensor& tensor = pack.plan.outputs[check.output];
      const Bytes got = pack.output(check.output);
      const Compared compared = compare(got, tensor, folder_.wanted(check, tensor));
      const std::string bad = check.shown ? "" : problem_of(compared, tensor, "expected");
      if (!bad.empty() && said && said->empty()) *said = bad;
      if (!bad.empty() && !said) wrong(prefix + bad);
      found.push_back(json_of(compared, tensor, got, bad));
      if (!options_.got.empty() && (!bad.empty() || options_.keep)) keep(name, check.output, got);
    }
    return found;
  }

  void keep(const std::string& name, size_t output, const Bytes& got) const {
    const std::string stem = name.substr(name.rfind('/') + 1);
    std::ofstream file(options_.got + "/" + stem.substr(0, stem.find('.')) + "_" + std::to_string(output) + ".bin", std::ios::binary);
    file.write(got.data(), static_cast<std::streamsize>(got.size()));
    if (!file.flush()) throw Refused("cannot write what came out to " + options_.got);
  }

  void repeat_outputs(Pack& pack) {
    std::set<std::string> distinct;
    const auto look = [&] {
      std::string all;
      for (size_t i = 0; i < pack.plan.outputs.size(); ++i) all += hash_of(pack.output(i));
      return distinct.insert(all).second;
    };
    look();
    size_t first = 0, runs = 1;
    for (; runs < options_.repeat && problem.empty(); ++runs) {
      poisoned_run(pack, "run " + std::to_string(runs + 1));
      if (look() && !first) first = runs + 1;
      if (first == runs + 1 && pack.plan.changes) check(pack, "", "in run " + std::to_string(first) + ": ");
    }
    result.whole("runs", runs).whole("distinct", distinct.size()).truth("declared", pack.plan.changes);
    if (distinct.size() > 1 && !pack.plan.changes)
      wrong(std::to_string(distinct.size()) + " different outputs in " + std::to_string(runs) + " runs of the same commands on the same inputs, first in run " + std::to_string(first));
  }

  void times(Pack& pack) {
    std::vector<Bytes> before;
    poisoned_run(pack, "before it is timed");
    for (size_t i = 0; i < pack.plan.outputs.size(); ++i) before.push_back(pack.output(i));
    tell_("run", pack.plan.label + ", timed");
    const Times found = measure(pack, options_.timing);
    if (pack.plan.repeats) pack.submit(pack.record(pack.downloads(), 0), nullptr);
    for (size_t i = 0; i < before.size() && !pack.plan.changes; ++i)
      if (pack.output(i) != before[i]) wrong("right at first, wrong when it was repeated: " + pack.plan.outputs[i].name + " has other bytes");
    if (pack.plan.changes) check(pack, "", "right at first, wrong when it was repeated: ");
    result.raw("times", times_json(pack, found));
  }

  // ---- models

  // Each node alone, from its expected inputs, and in the run: what it left there must be what the same dispatches give
  // alone for what it read there.
  void model(Pack& whole, const std::string&) {
    std::vector<std::string> nodes;
    const std::vector<std::string> first = hashes(whole);
    for (const Node& node : whole.plan.nodes) {
      std::string alone_said, run_said, cause;
      std::vector<std::string> alone_json, run_json;
      bool changes = false;
      std::string label;
      try {
        Pack alone(device_, folder_, folder_.plan(node.plan), tell_, limit_ns_, true);
        label = alone.plan.label;
        changes = alone.plan.changes;
        if (node.reads.size() != alone.plan.inputs.size() || node.writes.size() > alone.plan.outputs.size()) throw Refused("its plan has other inputs or outputs than the node");
        poisoned_run(alone, "alone");
        alone_json = check(alone, node.plan, "", &alone_said);
        const std::vector<Wanted> tolerances = allowed(alone);
        for (size_t i = 0; i < node.reads.size(); ++i)
          if (node.reads[i] >= 0) alone.input(i, whole.value(static_cast<size_t>(node.reads[i])));
        poisoned_run(alone, "on what it read in the run");
        for (size_t i = 0; i < node.writes.size(); ++i) {
          if (node.writes[i] < 0) continue;
          const Tensor& tensor = alone.plan.outputs[i];
          const Bytes left = whole.value(static_cast<size_t>(node.writes[i])), want = alone.output(i);
          if (left.size() != want.size()) throw Refused("value " + std::to_string(node.writes[i]) + " is of another size than what the node makes");
          const Compared compared = changes ? compare(left, tensor, twice(tolerances, i, want, tensor)) : compare_bits(left, want, tensor);
          const std::string bad = problem_of(compared, tensor, "alone");
          if (!bad.empty() && run_said.empty()) run_said = bad;
          run_json.push_back(json_of(compared, tensor, left, bad));
        }
        cause = !alone_said.empty() ? "alone" : !run_said.empty() ? "in the run" : "";
      } catch (const Refused& error) {
        cause = "refused";
        alone_said = error.what();
      }
      std::string said = cause == "alone"        ? "wrong alone, from reference inputs: " + alone_said
                         : cause == "in the run" ? "right alone, wrong in the run, given what it read there: another node overwrites its values, or it does not wait for one: " + run_said
                         : cause == "refused"    ? "cannot run alone: " + alone_said : "";
      nodes.push_back(Object().text("node", node.name).text("label", label).text("cause", cause).text("problem", said)
                          .raw("alone", list(alone_json)).raw("run", list(run_json)).truth("declared", changes).str());
      if (!cause.empty()) wrong(node.name + " (" + label + "): " + said);
      if (!cause.empty() && options_.stop_at_first) break;
    }
    result.raw("nodes", list(nodes));
    repeat_values(whole, first);
  }

  std::vector<Wanted> allowed(Pack& alone) const {
    std::vector<Wanted> found(alone.plan.outputs.size());
    for (const Check& check : alone.plan.checks) found[check.output] = folder_.wanted(check, alone.plan.outputs[check.output]);
    return found;
  }

  // Two results that are each within their tolerance of the reference.
  static Wanted twice(const std::vector<Wanted>& tolerances, size_t output, const Bytes& want, const Tensor& tensor) {
    Wanted made = tolerances[output];
    made.expected.resize(tensor.count);
    for (uint64_t i = 0; i < tensor.count; ++i) made.expected[i] = element(want.data(), tensor.dtype, i);
    for (double& each : made.allowed) each *= 2;
    made.uniform *= 2;
    made.floor *= 2;
    return made;
  }

  std::vector<std::string> hashes(Pack& whole) {
    std::vector<std::string> found;
    for (size_t i = 0; i < whole.plan.values.size(); ++i) found.push_back(hash_of(whole.value(i)));
    return found;
  }

  // Every value of every run, by its hash; a node is blamed where it differs and what it read does not.
  void repeat_values(Pack& whole, const std::vector<std::string>& first) {
    std::vector<std::set<std::string>> distinct(first.size());
    for (size_t i = 0; i < first.size(); ++i) distinct[i].insert(first[i]);
    std::vector<std::string> blamed;
    size_t runs = 1;
    for (; runs < options_.repeat; ++runs) {
      poisoned_run(whole, "run " + std::to_string(runs + 1));
      const std::vector<std::string> now = hashes(whole);
      for (size_t i = 0; i < now.size(); ++i) distinct[i].insert(now[i]);
      for (const Node& node : whole.plan.nodes) {
        const auto differs = [&](int64_t value) { return value >= 0 && now[static_cast<size_t>(value)] != first[static_cast<size_t>(value)]; };
        if (std::any_of(node.writes.begin(), node.writes.end(), differs) && std::none_of(node.reads.begin(), node.reads.end(), differs) && !folder_.plan(node.plan).changes &&
            std::find(blamed.begin(), blamed.end(), node.name) == blamed.end()) {
          blamed.push_back(node.name);
          wrong(node.name + " gave other bytes in run " + std::to_string(runs + 1) + " than in run 1, of the same commands on the same inputs");
        }
      }
    }
    size_t most = 1;
    for (const auto& of : distinct) most = std::max(most, of.size());
    std::vector<std::string> names;
    for (const std::string& name : blamed) names.push_back(quoted(name));
    result.whole("runs", runs).whole("distinct", most).raw("changed", list(names));
  }

  // The same model as users run it, where values share memory: the same bytes.
  void shared(Pack& whole) {
    Pack pack(device_, folder_, folder_.plan(whole.plan.shared), tell_, limit_ns_, true);
    poisoned_run(pack, "values sharing memory");
    std::vector<std::string> differ;
    for (size_t i = 0; i < whole.plan.outputs.size() && i < pack.plan.outputs.size(); ++i)
      if (pack.output(i) != whole.output(i)) differ.push_back(quoted(whole.plan.outputs[i].name));
    const bool steady = !whole.plan.changes && !pack.plan.changes;
    result.raw("shared", steady ? list(differ) : "[]");
    if (!differ.empty() && steady) wrong(list(differ) + " differs when values share memory: a value is overwritten before it was read");
    if (options_.bench && problem.empty()) times(pack);
  }
};

}  // namespace

std::string play(Device& device, const Folder& folder, const std::string& name, const std::string& label, const Options& options, const Tell& tell, bool* dead) {
  Player player(device, folder, options, tell);
  std::string status, why;
  try {
    player.play(name);
    status = player.problem.empty() ? "ok" : "FAILED";
    why = player.problem;
  } catch (const Refused& error) {
    status = "refused";
    why = error.what();
  } catch (const Failed& error) {
    status = error.lost ? "lost" : device.dead ? "timeout" : "error";
    why = error.what;
    *dead = error.lost || device.dead;
  } catch (const std::bad_alloc&) {
    status = "error";
    why = "this machine has too little memory for it";
  }
  player.result.raw("conditions", conditions_json());
  std::string line = Object().text("pack", name).text("label", label).text("status", status).text("why", why).str();
  const std::string more = player.result.str();
  if (more.size() > 2) line.replace(line.size() - 1, 1, ", " + more.substr(1));
  return line;
}

}  // namespace player
