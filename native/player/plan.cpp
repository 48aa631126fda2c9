#include "plan.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

namespace player {
namespace {

// What one pack may hold, whatever a device allows: a number in a plan must not decide how much memory its line takes.
constexpr size_t kMostLines = 1u << 20, kMostPacks = 1u << 17, kMostNodes = 1u << 14, kMostValues = 1u << 17;
constexpr uint64_t kMostBindings = 256, kMostSpec = 256, kMostPush = 4096, kMostPipelines = 1u << 14;
constexpr uint64_t kMostSide = 1u << 16, kMostBuffers = 4096, kMostRank = 32, kMostName = 4096, kMostBytes = uint64_t{1} << 46;

[[noreturn]] void refuse(const std::string& what) { throw Refused(what); }

class Line {
 public:
  explicit Line(const std::string& text) : text_(text) {
    const size_t mark = text.find(" # ");
    const std::string said = text.substr(0, mark);
    if (mark != std::string::npos) name = text.substr(mark + 3);
    for (size_t at = 0; at < said.size();) {
      if (said[at] == ' ') {
        ++at;
        continue;
      }
      const size_t end = std::min(said.find(' ', at), said.size());
      words_.push_back(said.substr(at, end - at));
      at = end;
    }
  }

  std::string name;

  bool empty() const { return words_.empty() || words_[0][0] == '#'; }
  bool more() const { return next_ < words_.size(); }

  const std::string& word() {
    if (!more()) bad("it ends early");
    return words_[next_++];
  }

  uint64_t number(uint64_t most = std::numeric_limits<uint64_t>::max()) {
    const std::string& text = word();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) bad("'" + text + "' is no whole number in 64 bits");
    if (value > most) bad(text + " is more than " + std::to_string(most));
    return value;
  }

  double real() {
    const std::string& text = word();
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (end != text.c_str() + text.size() || !std::isfinite(value) || value < 0) bad("'" + text + "' is no number from 0 on");
    return value;
  }

  // A file of the pack: nothing that leads out of its folder.
  std::string file() {
    const std::string text = word();
    bool good = !text.empty() && text[0] != '/' && text[0] != '.' && text.size() <= 255;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      good &= (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
              c == '/' || c == '.';
      good &= !(c == '.' && i > 0 && (text[i - 1] == '.' || text[i - 1] == '/'));
    }
    if (!good) bad("'" + text.substr(0, 80) + "' is no name of a file of a pack");
    return text;
  }

  void done() {
    if (more()) bad("'" + words_[next_].substr(0, 80) + "' is too much");
  }

  [[noreturn]] void bad(const std::string& why) const { refuse("bad line: " + text_.substr(0, 120) + ": " + why); }

 private:
  const std::string& text_;
  std::vector<std::string> words_;
  size_t next_ = 0;
};

Bytes unhex(Line& line) {
  const std::string text = line.word();
  Bytes bytes;
  if (text == "-") return bytes;
  if (text.size() % 2 || text.size() > 2 * kMostPush) line.bad("push constants are no whole bytes, or too many");
  for (size_t i = 0; i < text.size(); i += 2) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (error != std::errc() || end != text.data() + i + 2 || value < 0) line.bad("push constants are no hex bytes");
    bytes.push_back(static_cast<char>(value));
  }
  return bytes;
}

class Parser {
 public:
  Plan plan;

  void line(Line& line) {
    const std::string word = line.word();
    const auto known = words().find(word);
    if (known == words().end()) line.bad("the format has no such line");
    (this->*known->second)(line);
    line.done();
  }

  void finish() const {
    if (!ended_) refuse("the plan ends early: it has no line 'end'");
    for (const Check& check : plan.checks)
      if (check.output >= plan.outputs.size()) refuse("a check is of output " + std::to_string(check.output) + ", which is not there");
    for (const Node& node : plan.nodes)
      for (const auto* numbers : {&node.reads, &node.writes})
        for (int64_t number : *numbers)
          if (number >= static_cast<int64_t>(plan.values.size())) refuse("node " + node.name + " names value " + std::to_string(number) + ", which is not there");
  }

  bool ended() const { return ended_; }

 private:
  using Handler = void (Parser::*)(Line&);
  static const std::map<std::string, Handler>& words();  // made when it is asked for: before main nobody hears of a failure
  std::vector<Command>* phase_ = nullptr;
  bool ended_ = false;

  Region region(Line& line, bool of_texture = false) const {
    Region r;
    r.buffer = static_cast<uint32_t>(line.number(kMostBuffers));
    r.offset = line.number();
    r.nbytes = line.number();
    if (r.buffer >= plan.buffers.size()) line.bad("there is no buffer " + std::to_string(r.buffer));
    const uint64_t size = plan.buffers[r.buffer].nbytes;
    if (r.offset > size || r.nbytes > size - r.offset) line.bad("a place lies outside of its buffer");
    if (of_texture == plan.buffers[r.buffer].texels.empty()) line.bad("buffer " + std::to_string(r.buffer) + (of_texture ? " is no texture" : " is a texture"));
    if (of_texture && (r.offset || r.nbytes != size)) line.bad("a place is a part of a texture");
    return r;
  }

  Kind kind(const Region& r) const { return plan.buffers[r.buffer].kind; }

  // TYPE SHAPE of what lies at a place.
  void elements(Line& line, Tensor& tensor) const {
    tensor.dtype = line.word();
    tensor.name = line.name;
    const uint64_t width = width_of(tensor.dtype);
    if (!width) line.bad("there is no type " + tensor.dtype.substr(0, 40));
    const std::string shape = line.word();
    for (size_t at = 0; shape != "scalar" && at <= shape.size();) {
      const size_t end = std::min(shape.find('x', at), shape.size());
      uint64_t side = 0;
      const auto [stop, error] = std::from_chars(shape.data() + at, shape.data() + end, side);
      if (error != std::errc() || stop != shape.data() + end || tensor.dims.size() == kMostRank) line.bad("'" + shape.substr(0, 80) + "' is no shape");
      tensor.dims.push_back(side);
      if (side && tensor.count > kMostBytes / side) line.bad("the shape is too large");
      tensor.count *= side;
      at = end + 1;
    }
    if (tensor.count * width > tensor.at.nbytes) line.bad("the elements are more than their place holds");
  }

  void on_label(Line& line) {
    plan.label = line.name.substr(0, kMostName);
  }
  void on_changes(Line&) { plan.changes = true; }
  void on_repeats(Line&) { plan.repeats = true; }
  void on_shared(Line& line) { plan.shared = line.file(); }
  void on_needs(Line& line) {
    const std::string name = line.word();
    plan.needs.emplace_back(name, line.number());
  }
  void on_capability(Line& line) { plan.capabilities.push_back(line.word()); }

  void on_buffer(Line& line) {
    if (line.number() != plan.buffers.size() || plan.buffers.size() == kMostBuffers) line.bad("buffers are numbered in their order");
    const std::string kind = line.word();
    BufferLine made;
    if (kind == "upload") made.kind = Kind::Upload;
    else if (kind == "download") made.kind = Kind::Download;
    else if (kind != "device") line.bad("there is no kind " + kind.substr(0, 40));
    made.nbytes = line.number(kMostBytes);
    plan.buffers.push_back(made);
  }

  void on_pipeline(Line& line) {
    if (line.number() != plan.pipelines.size() || plan.pipelines.size() == kMostPipelines) line.bad("pipelines are numbered in their order");
    PipelineLine made;
    made.name = line.name;
    made.file = line.file();
    made.bindings = static_cast<uint32_t>(line.number(kMostBindings));
    made.push_bytes = static_cast<uint32_t>(line.number(kMostPush));
    made.spec.resize(line.number(kMostSpec));
    if (made.push_bytes % 4) line.bad("push constants are whole words");
    for (uint32_t& word : made.spec) word = static_cast<uint32_t>(line.number(std::numeric_limits<uint32_t>::max()));
    plan.pipelines.push_back(made);
  }

  void on_texture(Line& line) {
    const uint64_t number = line.number();
    if (number >= plan.buffers.size()) line.bad("there is no buffer " + std::to_string(number));
    if (phase_) line.bad("textures come before commands");
    BufferLine& made = plan.buffers[number];
    if (made.kind != Kind::Device || !made.texels.empty()) line.bad("a texture is a device buffer, once");
    made.texels = line.word();
    const uint64_t width = made.texels == "rgba32f" ? 16 : made.texels == "rgba16f" ? 8 : 0;
    if (!width) line.bad("there are no texels " + made.texels.substr(0, 40));
    for (uint32_t& side : made.extent) side = static_cast<uint32_t>(line.number(kMostSide));
    const uint64_t plane = uint64_t{made.extent[0]} * made.extent[1];
    if (!plane || plane * std::max(made.extent[2], 1u) * width != made.nbytes) line.bad("its texels are not the bytes of its buffer");
  }

  void on_bindings(Line& line) {
    const uint64_t number = line.number();
    if (number >= plan.pipelines.size()) line.bad("there is no pipeline " + std::to_string(number));
    if (phase_) line.bad("bindings come before commands");
    PipelineLine& pipeline = plan.pipelines[number];
    pipeline.kinds = line.word();
    if (pipeline.kinds.size() != pipeline.bindings || pipeline.kinds.find_first_not_of("bsi") != std::string::npos)
      line.bad("each binding has a letter, b, s or i");
  }

  void on_subgroup(Line& line) {
    const uint64_t number = line.number();
    if (number >= plan.pipelines.size()) line.bad("there is no pipeline " + std::to_string(number));
    plan.pipelines[number].subgroup_size = static_cast<uint32_t>(line.number(1u << 16));
  }

  void on_weights(Line& line) {
    Tensor made;
    made.at = region(line);
    made.file = line.file();
    if (kind(made.at) != Kind::Upload) line.bad("weights lie in an upload buffer");
    plan.weights.push_back(made);
  }

  void on_input(Line& line) {
    Tensor made;
    made.at = region(line);
    made.file = line.file();
    if (kind(made.at) != Kind::Upload) line.bad("inputs lie in an upload buffer");
    elements(line, made);
    plan.inputs.push_back(made);
  }

  void on_output(Line& line) {
    Tensor made;
    made.at = region(line);
    if (kind(made.at) != Kind::Download) line.bad("outputs lie in a download buffer");
    elements(line, made);
    plan.outputs.push_back(made);
  }

  void on_value(Line& line) {
    if (plan.values.size() == kMostValues) line.bad("there are too many values");
    Tensor made;
    made.at = region(line);
    if (kind(made.at) != Kind::Device) line.bad("values lie in a device buffer");
    elements(line, made);
    plan.values.push_back(made);
  }

  void on_check(Line& line) {
    Check made;
    made.output = line.number(kMostValues);
    made.expected = line.file();
    const std::string how = line.word();
    if (how == "each") made.allowed = line.file();
    else if (how == "all") made.uniform = line.real();
    else if (how == "shown") made.shown = true;
    else line.bad("what is allowed is 'all NUMBER', 'each FILE' or 'shown'");
    made.relative = line.real();
    made.floor = line.real();
    if (line.more()) made.overflow = line.file();
    plan.checks.push_back(made);
  }

  void on_node(Line& line) {
    if (plan.nodes.size() == kMostNodes) line.bad("there are too many nodes");
    Node made;
    made.name = line.name;
    made.plan = line.file();
    for (auto* numbers : {&made.reads, &made.writes}) {
      const uint64_t count = line.number(kMostName);
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t number = line.number(kMostValues);  // 0: none, else 1 + the value
        numbers->push_back(static_cast<int64_t>(number) - 1);
      }
    }
    plan.nodes.push_back(made);
  }

  void on_load(Line&) { phase_ = &plan.load; }
  void on_run(Line&) { phase_ = &plan.run; }

  std::vector<Command>& phase(Line& line) const {
    if (!phase_) line.bad("commands come after 'load' or 'run'");
    return *phase_;
  }

  void on_dispatch(Line& line) {
    Command made;
    made.kind = Command::Kind::Dispatch;
    made.name = line.name;
    made.pipeline = static_cast<uint32_t>(line.number(kMostPipelines));
    if (made.pipeline >= plan.pipelines.size()) line.bad("there is no pipeline " + std::to_string(made.pipeline));
    for (uint32_t& side : made.groups) {
      side = static_cast<uint32_t>(line.number(std::numeric_limits<uint32_t>::max()));
      if (!side) line.bad("a dispatch has a workgroup at least");
    }
    made.push = unhex(line);
    const PipelineLine& pipeline = plan.pipelines[made.pipeline];
    if (made.push.size() != pipeline.push_bytes) line.bad("push constants of the wrong size");
    for (uint32_t i = 0; i < pipeline.bindings; ++i) {
      made.regions.push_back(region(line, pipeline.kind(i) != 'b'));
      if (!made.regions.back().nbytes || kind(made.regions.back()) == Kind::Download) line.bad("a binding is of no bytes, or of a download buffer");
    }
    for (size_t i = 0; i < made.regions.size(); ++i)
      for (size_t k = 0; k < i; ++k)
        if (pipeline.kind(i) != 'b' && pipeline.kind(k) != pipeline.kind(i) && made.regions[i].buffer == made.regions[k].buffer)
          line.bad("a texture is sampled and stored at once");
    phase(line).push_back(made);
  }

  void on_copy(Line& line) {
    Command made;
    made.kind = Command::Kind::Copy;
    made.name = line.name;
    made.regions = {region(line), region(line)};
    const Region &from = made.regions[0], &to = made.regions[1];
    if (from.nbytes != to.nbytes || !from.nbytes) line.bad("a copy is of bytes, as many as it writes");
    if (from.buffer == to.buffer && from.offset < to.offset + to.nbytes && to.offset < from.offset + from.nbytes) line.bad("a copy overlaps itself");
    phase(line).push_back(made);
  }

  void on_barrier(Line& line) { phase(line).push_back(Command{}); }
  void on_end(Line&) { ended_ = true; }
};

const std::map<std::string, Parser::Handler>& Parser::words() {
  static const std::map<std::string, Handler> all = {
      {"label", &Parser::on_label},       {"changes", &Parser::on_changes}, {"shared", &Parser::on_shared},
      {"repeats", &Parser::on_repeats},   {"needs", &Parser::on_needs},       {"capability", &Parser::on_capability},
      {"buffer", &Parser::on_buffer},     {"pipeline", &Parser::on_pipeline}, {"subgroup", &Parser::on_subgroup},
      {"weights", &Parser::on_weights},   {"input", &Parser::on_input},     {"output", &Parser::on_output},
      {"value", &Parser::on_value},       {"check", &Parser::on_check},     {"node", &Parser::on_node},
      {"load", &Parser::on_load},         {"run", &Parser::on_run},         {"dispatch", &Parser::on_dispatch},
      {"texture", &Parser::on_texture},   {"bindings", &Parser::on_bindings},
      {"copy", &Parser::on_copy},         {"barrier", &Parser::on_barrier}, {"end", &Parser::on_end},
  };
  return all;
}

// Calls `take` with each line after the first, which must be `first`, until it says that it is done.
template <typename Take>
void each_line(const std::string& text, const std::string& first, Take take) {
  size_t at = 0, number = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (number++ == 0) {
      if (line != first) refuse("it begins with '" + line.substr(0, 40) + "', not with '" + first + "'");
      continue;
    }
    if (number > kMostLines) refuse("it has more than " + std::to_string(kMostLines) + " lines");
    Line parsed(line);
    if (!parsed.empty() && take(parsed)) return;
  }
  if (!number) refuse("it is empty");
}

}  // namespace

uint64_t width_of(const std::string& dtype) {
  static const std::map<std::string, uint64_t> widths = {{"f32", 4}, {"f16", 2}, {"bf16", 2}, {"i64", 8}, {"i32", 4},
                                                         {"u32", 4}, {"u16", 2}, {"i8", 1},   {"u8", 1},  {"bool", 1}};
  const auto found = widths.find(dtype);
  return found == widths.end() ? 0 : found->second;
}

uint64_t Plan::buffer_bytes() const {
  uint64_t total = 0;
  for (const BufferLine& buffer : buffers) total += buffer.nbytes;
  return total;
}

Plan parse_plan(const std::string& text) {
  Parser parser;
  each_line(text, "vkconv-pack 2", [&](Line& line) {
    parser.line(line);
    return parser.ended();
  });
  parser.finish();
  return parser.plan;
}

Index parse_index(const std::string& text) {
  Index index;
  bool ended = false;
  each_line(text, "vkconv-packs 2", [&](Line& line) {
    const std::string word = line.word();
    if (word == "end") ended = true;
    else if (word != "pack") line.bad("an index has lines 'pack' and 'end'");
    else if (index.packs.size() == kMostPacks) line.bad("there are too many packs");
    else index.packs.emplace_back(line.file(), line.name.substr(0, kMostName));
    line.done();
    return ended;
  });
  if (!ended) refuse("the index ends early: it has no line 'end'");
  return index;
}

}  // namespace player
