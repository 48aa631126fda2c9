// JSON as text, written member by member.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace player {

inline std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') made += '\\', made += c;
    else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      made += escape;
    } else made += c;
  }
  return made + '"';
}

// Numbers that JSON does not have are null.
inline std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

class Object {
 public:
  Object& raw(const std::string& name, const std::string& json) {
    text_ += (text_.empty() ? "" : ", ") + quoted(name) + ": " + json;
    return *this;
  }
  Object& text(const std::string& name, const std::string& value) { return raw(name, quoted(value)); }
  Object& real(const std::string& name, double value) { return raw(name, number(value)); }
  Object& whole(const std::string& name, uint64_t value) { return raw(name, std::to_string(value)); }
  Object& truth(const std::string& name, bool value) { return raw(name, value ? "true" : "false"); }
  std::string str() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

inline std::string list(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return "[" + text + "]";
}

}  // namespace player
