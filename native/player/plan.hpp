// What a pack says, as docs/format.md states it. Nothing here knows Vulkan.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace player {

using Bytes = std::vector<char>;

// A pack that breaks a rule of the format, or asks for what this device or this player does not have.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Region {
  uint32_t buffer = 0;
  uint64_t offset = 0, nbytes = 0;
};

enum class Kind { Device, Upload, Download };

struct BufferLine {
  Kind kind = Kind::Device;
  uint64_t nbytes = 0;
  std::string texels;             // of a texture, rgba32f or rgba16f; empty: it is a buffer
  uint32_t extent[3] = {0, 0, 0};  // of a texture; a depth of 0 has two dimensions
};

struct PipelineLine {
  std::string file, name;
  uint32_t bindings = 0, push_bytes = 0;
  std::string kinds;  // a letter for each binding: b a storage buffer, s a sampled texture, i a stored one; empty: all b
  std::vector<uint32_t> spec;
  uint32_t subgroup_size = 0;  // 0: as the driver likes

  char kind(size_t binding) const { return kinds.empty() ? 'b' : kinds[binding]; }
  uint32_t count(char kind) const {
    uint32_t found = 0;
    for (size_t i = 0; i < bindings; ++i) found += this->kind(i) == kind;
    return found;
  }
};

// Elements at a place: an input, an output, a value of a model.
struct Tensor {
  Region at;
  std::string dtype, name, file;  // file: of inputs and weights
  std::vector<uint64_t> dims;
  uint64_t count = 1;  // elements
};

// What an output must be: within `allowed` of each expected element.
struct Check {
  size_t output = 0;
  std::string expected, allowed, overflow;  // files; allowed and overflow may be empty
  double uniform = 0;                       // what is allowed where there is no such file
  bool shown = false;                       // its errors have no bound: they are shown, and judged by nobody
  double relative = 0, floor = 0;
};

struct Command {
  enum class Kind { Dispatch, Copy, Barrier } kind = Kind::Barrier;
  uint32_t pipeline = 0, groups[3] = {1, 1, 1};
  Bytes push;
  std::vector<Region> regions;
  std::string name;
};

// A node of a model: the plan of it alone, and the model's values that it reads and writes (-1: its own input).
struct Node {
  std::string plan, name;
  std::vector<int64_t> reads, writes;
};

struct Plan {
  std::string label, shared;
  bool changes = false;  // its last bits may change from run to run
  bool repeats = false;  // its dispatches may be repeated without its copies: nothing overwrites what they read
  std::vector<std::pair<std::string, uint64_t>> needs;
  std::vector<std::string> capabilities;
  std::vector<BufferLine> buffers;
  std::vector<PipelineLine> pipelines;
  std::vector<Tensor> weights, inputs, outputs, values;
  std::vector<Check> checks;
  std::vector<Node> nodes;
  std::vector<Command> load, run;

  uint64_t buffer_bytes() const;
};

struct Index {
  std::vector<std::pair<std::string, std::string>> packs;  // plan, label
};

// Bytes of an element; 0 for a type that this player does not know.
uint64_t width_of(const std::string& dtype);

// Both refuse, with the line, whatever docs/format.md says that a reader must refuse.
Plan parse_plan(const std::string& text);
Index parse_index(const std::string& text);

}  // namespace player
