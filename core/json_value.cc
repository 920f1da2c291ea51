// SPDX-License-Identifier: Apache-2.0
#include "core/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "core/config_io.h"

namespace millwright {
namespace {

using Kind = JsonValue::Kind;

constexpr std::size_t kMostDepth = 64;
constexpr std::size_t kMostValues = 1'000'000;
constexpr std::size_t kMostQuoted = 60;
constexpr std::size_t kMostSyntaxMessage = 160;

[[noreturn]] void Fail(const std::string& file, std::string_view pointer, std::string_view what) {
  Mistakes one(file);
  one.Add(pointer, what);
  one.ThrowIfAny();
  throw ConfigError(std::string(what));  // not reached
}

[[noreturn]] void FailAt(const std::string& file, std::string_view text, std::size_t offset,
                         std::string_view what) {
  offset = std::min(offset, text.size());
  const std::string_view before = text.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = offset - (newline == before.npos ? 0 : newline + 1) + 1;
  Fail(file, "", fmt::format("line {}, column {}: not valid JSON: {}", line, column, what));
}

// The JSON grammar knows no NaN and no Infinity, and the library stops at the first number that
// overflows.  So such a token is replaced by a string of the same length (offsets stay true),
// and `special` remembers which string of the document that is.
struct Rewritten {
  std::string text;
  std::map<std::size_t, std::string> special;  // ordinal among all strings -> token
};

bool Overflows(std::string_view token) {
  double value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (error != std::errc::result_out_of_range || end != token.data() + token.size()) return false;
  const std::size_t exponent = token.find_first_of("eE");
  return exponent == token.npos || exponent + 1 >= token.size() || token[exponent + 1] != '-';
}

Rewritten RewriteNotFinite(const std::string& file, std::string_view text) {
  Rewritten out{std::string(text), {}};
  std::size_t strings = 0;
  std::size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i)
        if (text[i] == '\\') ++i;
      ++i;
      ++strings;
      continue;
    }
    // The library takes a NUL for the end of the text, whatever follows.
    if (c == '\0') FailAt(file, text, i, "a NUL byte");
    const bool starts = c == '-' || (c >= '0' && c <= '9') || c == 'N' || c == 'I';
    if (!starts) {
      ++i;
      continue;
    }
    const std::size_t end = std::min(text.find_first_of(" \t\r\n,:]}[{\"", i), text.size());
    const std::string_view token = text.substr(i, end - i);
    if (token == "NaN" || token == "Infinity" || token == "-Infinity" || Overflows(token)) {
      out.special.emplace(strings++, token);
      out.text[i] = out.text[end - 1] = '"';
      std::fill(out.text.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                out.text.begin() + static_cast<std::ptrdiff_t>(end) - 1, 'x');
    }
    i = std::max(end, i + 1);
  }
  return out;
}

// Builds the tree.  The parser itself keeps a stack of its own, so depth costs no call stack.
class Builder : public nlohmann::json::json_sax_t {
 public:
  Builder(const std::string& file, std::string_view original,
          const std::map<std::size_t, std::string>& special, Mistakes& mistakes)
      : file_(file), original_(original), special_(special), mistakes_(mistakes) {}

  JsonValue Take() { return std::move(root_); }

  bool null() override { return Put({}); }
  bool boolean(bool v) override {
    JsonValue value;
    value.kind = Kind::kBool;
    value.boolean = v;
    return Put(std::move(value));
  }
  bool number_integer(number_integer_t v) override {
    JsonValue value;
    value.kind = Kind::kInteger;
    value.integer = v;
    value.text = std::to_string(v);
    return Put(std::move(value));
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (v <= static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()))
      return number_integer(static_cast<number_integer_t>(v));
    return PutNumber(Kind::kHugeInteger, static_cast<double>(v), std::to_string(v));
  }
  bool number_float(number_float_t v, const string_t& written) override {
    const bool integer = written.find_first_of(".eE") == written.npos;
    return PutNumber(integer ? Kind::kHugeInteger : Kind::kNumber, v, written);
  }
  bool string(string_t& v) override {
    if (const auto it = special_.find(strings_++); it != special_.end())
      return PutNumber(Kind::kNotFinite, std::numeric_limits<double>::quiet_NaN(), it->second);
    JsonValue value;
    value.kind = Kind::kText;
    value.text = std::move(v);
    return Put(std::move(value));
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return Open(Kind::kObject); }
  bool start_array(std::size_t) override { return Open(Kind::kArray); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& v) override {
    if (const auto it = special_.find(strings_++); it != special_.end())
      Fail(file_, Pointer(), fmt::format("not valid JSON: {} is no key", it->second));
    Level& level = open_.back();
    if (!level.seen.insert(v).second && !mistakes_.full())
      mistakes_.Add(PointerTo(Pointer(), v), "duplicate field");
    level.key = std::move(v);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    std::string_view what = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..."
    for (std::string_view lead : {"column ", ": "})
      if (const auto at = what.find(lead); at != what.npos) what.remove_prefix(at + lead.size());
    for (std::string_view lead : {"syntax error "})
      if (what.substr(0, lead.size()) == lead) what.remove_prefix(lead.size());
    FailAt(file_, original_, position == 0 ? 0 : position - 1, Printable(what, kMostSyntaxMessage));
  }

 private:
  struct Level {
    JsonValue value;
    std::string key;  // of the member being read
    std::unordered_set<std::string> seen;
  };

  std::string Pointer() const {
    std::string pointer;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) pointer = Step(pointer, open_[i]);
    return pointer;
  }
  static std::string Step(const std::string& pointer, const Level& level) {
    return level.value.kind == Kind::kObject
               ? PointerTo(pointer, level.key)
               : PointerTo(pointer, std::to_string(level.value.items.size()));
  }

  bool Open(Kind kind) {
    if (open_.size() == kMostDepth) {
      Fail(file_, Step(Pointer(), open_.back()),
           fmt::format("nested more than {} levels deep", kMostDepth));
    }
    Level level;
    level.value.kind = kind;
    open_.push_back(std::move(level));
    return true;
  }
  bool Close() {
    JsonValue value = std::move(open_.back().value);
    open_.pop_back();
    return Put(std::move(value));
  }
  bool PutNumber(Kind kind, double number, std::string written) {
    JsonValue value;
    value.kind = kind;
    value.number = number;
    value.text = std::move(written);
    return Put(std::move(value));
  }
  bool Put(JsonValue value) {
    if (++values_ > kMostValues)
      Fail(file_, "", fmt::format("holds more than {} values", kMostValues));
    if (value.kind == Kind::kInteger) value.number = static_cast<double>(value.integer);
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Level& level = open_.back(); level.value.kind == Kind::kObject) {
      level.value.members.push_back({std::move(level.key), std::move(value)});
      level.key.clear();
    } else {
      level.value.items.push_back(std::move(value));
    }
    return true;
  }

  const std::string& file_;
  std::string_view original_;
  const std::map<std::size_t, std::string>& special_;
  Mistakes& mistakes_;
  JsonValue root_;
  std::vector<Level> open_;
  std::size_t strings_ = 0;
  std::size_t values_ = 0;
};

// Stops once `out` is longer than any message shows.
void Dump(const JsonValue& value, std::string& out) {
  if (out.size() > kMostQuoted) return;
  switch (value.kind) {
    case Kind::kNull:
      out += "null";
      return;
    case Kind::kBool:
      out += value.boolean ? "true" : "false";
      return;
    case Kind::kInteger:
    case Kind::kHugeInteger:
    case Kind::kNumber:
    case Kind::kNotFinite:
      out += value.text;
      return;
    case Kind::kText:
      out += JsonText(std::string_view(value.text).substr(0, 2 * kMostQuoted));
      return;
    case Kind::kArray:
      out += '[';
      for (std::size_t i = 0; i < value.items.size() && out.size() <= kMostQuoted; ++i) {
        if (i > 0) out += ", ";
        Dump(value.items[i], out);
      }
      out += ']';
      return;
    case Kind::kObject:
      out += '{';
      for (std::size_t i = 0; i < value.members.size() && out.size() <= kMostQuoted; ++i) {
        if (i > 0) out += ", ";
        out += JsonText(std::string_view(value.members[i].key).substr(0, 2 * kMostQuoted));
        out += ": ";
        Dump(value.members[i].value, out);
      }
      out += '}';
      return;
  }
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  for (auto it = members.rbegin(); it != members.rend(); ++it)
    if (it->key == key) return &it->value;
  return nullptr;
}

JsonValue ParseJson(const std::string& file, std::string_view text, Mistakes& mistakes) {
  const Rewritten rewritten = RewriteNotFinite(file, text);
  Builder builder(file, text, rewritten.special, mistakes);
  nlohmann::json::sax_parse(rewritten.text, &builder);
  return builder.Take();
}

std::string Quote(const JsonValue& value) {
  std::string dumped;
  Dump(value, dumped);
  std::string out = Printable(dumped, kMostQuoted);
  if (value.kind == Kind::kHugeInteger) out += " (beyond 64 bits)";
  if (value.kind == Kind::kNotFinite && value.text.find_first_of("Nn") == value.text.npos)
    out += " (beyond the range of a double)";
  return out;
}

std::string JsonText(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

}  // namespace millwright
