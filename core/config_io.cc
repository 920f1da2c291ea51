// SPDX-License-Identifier: Apache-2.0
#include "core/config_io.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/json_value.h"
#include "core/mistakes.h"
#include "core/unit_text.h"

namespace millwright {
namespace {

using Kind = JsonValue::Kind;
namespace fs = std::filesystem;

constexpr std::size_t kMostFileBytes = std::size_t{16} << 20;
constexpr std::string_view kNoDefault = "none (to be given)";

std::string Shortest(double value) {
  MILLWRIGHT_CHECK(std::isfinite(value));
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  MILLWRIGHT_CHECK(error == std::errc());
  return std::string(buffer.data(), end);
}

bool Contains(const NumberRange& range, double value) {
  return std::isfinite(value) && value <= range.max &&
         (range.min_open ? value > range.min : value >= range.min);
}

// "above 0", "of at least 1", "from 2 to 4"; empty where any finite number will do.
std::string RangeText(const NumberRange& range, std::string_view unit) {
  const NumberRange any;
  const auto number = [&](double v) { return Shortest(v) + std::string(unit); };
  if (range.min == any.min && range.max == any.max) return "";
  if (range.max == any.max)
    return fmt::format("{} {}", range.min_open ? "above" : "of at least", number(range.min));
  if (range.min == any.min) return fmt::format("of at most {}", number(range.max));
  return range.min_open
             ? fmt::format("above {} and at most {}", number(range.min), number(range.max))
             : fmt::format("from {} to {}", number(range.min), number(range.max));
}

std::string Article(std::string_view noun, const std::string& range) {
  return range.empty() ? std::string(noun) : fmt::format("{} {}", noun, range);
}

// What one text of a file has to be.
constexpr std::string_view kLineOfText = "a text without control characters";

std::string OneOf(std::span<const std::string_view> words) {
  return fmt::format("\"{}\"", fmt::join(words, "\", \""));
}

std::string DidYouMean(std::string_view word, std::span<const std::string_view> candidates) {
  const std::string_view near = NearestName(word, candidates);
  return near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near);
}

}  // namespace

struct ConfigIo::State {
  enum class Mode { kRead, kWrite, kDescribe };

  // One open object.
  struct Frame {
    const JsonValue* object = nullptr;  // kRead
    std::string pointer;
    std::vector<std::string_view> known;
    std::size_t field_mistakes_before = 0;
    bool empty = true;  // kWrite
  };

  Mode mode;
  Mistakes* mistakes = nullptr;
  std::size_t problems = 0;  // of the mistakes: those that relate fields
  std::vector<Frame> frames;
  std::string out;
  std::vector<FieldDoc> docs;

  bool reading() const { return mode == Mode::kRead; }
  Frame& top() { return frames.back(); }
  std::size_t FieldMistakes() const {
    return mistakes == nullptr ? 0 : mistakes->count() - problems;
  }
  std::string Pointer(std::string_view key) { return PointerTo(top().pointer, key); }

  void Enter(const JsonValue* object, std::string pointer) {
    frames.push_back({object, std::move(pointer), {}, FieldMistakes(), true});
  }

  void Leave() {
    if (reading()) ComplainOfUnknownKeys();
    frames.pop_back();
  }

  void ComplainOfUnknownKeys() {
    const Frame& frame = top();
    for (const auto& [key, value] : frame.object->members) {
      if (std::find(frame.known.begin(), frame.known.end(), key) != frame.known.end()) continue;
      if (mistakes->full()) {
        mistakes->Add("", "");  // only counts
        continue;
      }
      std::string what = "unknown field; ";
      if (const auto near = NearestName(key, frame.known); !near.empty())
        what += fmt::format("did you mean \"{}\"? ", near);
      mistakes->Add(Pointer(key),
                    what + fmt::format("accepted fields: {}", fmt::join(frame.known, ", ")));
    }
  }

  void Know(const char* key) {
    auto& known = top().known;
    MILLWRIGHT_CHECK(std::find(known.begin(), known.end(), key) == known.end());
    known.emplace_back(key);
  }

  // kRead: the value of `key`, or null where it is absent (a mistake if it is required).
  const JsonValue* Find(const char* key, std::string_view expected, Presence presence) {
    Know(key);
    const JsonValue* value = top().object->find(key);
    if (value == nullptr && presence == Presence::kRequired) {
      mistakes->Add(Pointer(key),
                    fmt::format("expected {}, got nothing (this field is required)", expected));
    }
    return value;
  }

  void Wrong(const std::string& pointer, std::string_view expected, const JsonValue& got,
             std::string_view hint = "") {
    mistakes->Add(pointer, fmt::format("expected {}, got {}{}", expected, Quote(got), hint));
  }
  void Wrong(const char* key, std::string_view expected, const JsonValue& got,
             std::string_view hint = "") {
    Wrong(Pointer(key), expected, got, hint);
  }

  // kWrite
  void NewLine() {
    out += '\n';
    out.append(2 * frames.size(), ' ');
  }
  void NextItem() {
    if (!std::exchange(top().empty, false)) out += ',';
    NewLine();
  }
  void WriteKey(const char* key) {
    Know(key);
    NextItem();
    out += JsonText(key);
    out += ": ";
  }
  void Open(char bracket) {
    out += bracket;
    Enter(nullptr, "");
  }
  void Shut(char bracket) {
    const bool empty = top().empty;
    Leave();
    if (!empty) NewLine();
    out += bracket;
  }
  void WriteTexts(std::span<const std::string_view> texts) {
    out += '[';
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (i > 0) out += ", ";
      out += JsonText(texts[i]);
    }
    out += ']';
  }

  void Document(const char* key, std::string type, std::string accepted, std::string by_default,
                const char* meaning, Presence presence) {
    Know(key);
    if (presence == Presence::kRequired) by_default = "required";
    docs.push_back(
        {Pointer(key), std::move(type), std::move(accepted), std::move(by_default), meaning});
  }
};

ConfigIo::ConfigIo(std::unique_ptr<State> state) : state_(std::move(state)) {}
ConfigIo::~ConfigIo() = default;

bool ConfigIo::reading() const { return state_->reading(); }
bool ConfigIo::writing() const { return state_->mode == State::Mode::kWrite; }

void ConfigIo::Int(const char* key, std::int64_t& value, IntRange range, const char* meaning,
                   Presence presence) {
  State& s = *state_;
  const std::string expected = fmt::format("an integer from {} to {}", range.min, range.max);
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.out += std::to_string(value);
      return;
    case State::Mode::kDescribe: {
      const bool sound = value >= range.min && value <= range.max;
      s.Document(key, "integer", fmt::format("{} to {}", range.min, range.max),
                 sound ? std::to_string(value) : std::string(kNoDefault), meaning, presence);
      return;
    }
    case State::Mode::kRead: {
      const JsonValue* got = s.Find(key, expected, presence);
      if (got == nullptr) return;
      if (got->kind == Kind::kInteger && got->integer >= range.min && got->integer <= range.max) {
        value = got->integer;
        return;
      }
      const bool whole = got->kind == Kind::kNumber && got->number == std::floor(got->number);
      s.Wrong(key, expected, *got, whole ? " (write it without a point or an exponent)" : "");
      return;
    }
  }
}

void ConfigIo::Int(const char* key, int& value, IntRange range, const char* meaning,
                   Presence presence) {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  std::int64_t wide = value;
  Int(key, wide, {.min = range.min, .max = std::min(range.max, kMost)}, meaning, presence);
  value = static_cast<int>(wide);
}

void ConfigIo::Ints(const char* key, std::vector<int>& value, IntRange range, const char* meaning) {
  State& s = *state_;
  const std::string bounds = fmt::format("from {} to {}", range.min, range.max);
  const std::string list = fmt::format("[{}]", fmt::join(value, ", "));
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.out += list;
      return;
    case State::Mode::kDescribe:
      s.Document(key, "list of integers", fmt::format("{} to {} each", range.min, range.max), list,
                 meaning, Presence::kOptional);
      return;
    case State::Mode::kRead: {
      const JsonValue* got = s.Find(key, "a list of integers " + bounds, Presence::kOptional);
      if (got == nullptr) return;
      if (got->kind != Kind::kArray) return s.Wrong(key, "a list of integers " + bounds, *got);
      value.clear();
      for (std::size_t i = 0; i < got->items.size(); ++i) {
        const JsonValue& item = got->items[i];
        if (item.kind == Kind::kInteger && item.integer >= range.min && item.integer <= range.max) {
          value.push_back(static_cast<int>(item.integer));
        } else {
          s.Wrong(PointerTo(s.Pointer(key), std::to_string(i)), "an integer " + bounds, item);
        }
      }
      return;
    }
  }
}

void ConfigIo::Number(const char* key, double& value, NumberRange range, const char* meaning,
                      Presence presence) {
  State& s = *state_;
  const std::string range_text = RangeText(range, "");
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.out += Shortest(value);
      return;
    case State::Mode::kDescribe:
      s.Document(key, "number", range_text.empty() ? "any finite number" : range_text,
                 Contains(range, value) ? Shortest(value) : std::string(kNoDefault), meaning,
                 presence);
      return;
    case State::Mode::kRead: {
      const std::string expected = Article("a number", range_text);
      const JsonValue* got = s.Find(key, expected, presence);
      if (got == nullptr) return;
      const bool number = got->kind == Kind::kInteger || got->kind == Kind::kHugeInteger ||
                          got->kind == Kind::kNumber;
      if (number && Contains(range, got->number)) {
        value = got->number;
      } else {
        s.Wrong(key, expected, *got);
      }
      return;
    }
  }
}

void ConfigIo::Bool(const char* key, bool& value, const char* meaning, Presence presence) {
  State& s = *state_;
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.out += value ? "true" : "false";
      return;
    case State::Mode::kDescribe:
      s.Document(key, "boolean", "true, false", value ? "true" : "false", meaning, presence);
      return;
    case State::Mode::kRead: {
      const JsonValue* got = s.Find(key, "true or false", presence);
      if (got == nullptr) return;
      if (got->kind == Kind::kBool) {
        value = got->boolean;
      } else {
        s.Wrong(key, "true or false", *got);
      }
      return;
    }
  }
}

void ConfigIo::Text(const char* key, std::string& value, const char* meaning, Presence presence) {
  State& s = *state_;
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.out += JsonText(value);
      return;
    case State::Mode::kDescribe:
      s.Document(key, "text", "any text", JsonText(value), meaning, presence);
      return;
    case State::Mode::kRead: {
      const JsonValue* got = s.Find(key, "a text", presence);
      if (got == nullptr) return;
      if (got->kind != Kind::kText) {
        s.Wrong(key, "a text", *got);
      } else if (!IsPrintable(got->text)) {
        s.Wrong(key, kLineOfText, *got);
      } else {
        value = got->text;
      }
      return;
    }
  }
}

void ConfigIo::Name(const char* key, std::string& value, std::span<const std::string_view> names,
                    const char* meaning, Presence presence) {
  const auto it = std::find(names.begin(), names.end(), value);
  int index = it == names.end() ? -1 : static_cast<int>(it - names.begin());
  if (EnumField(key, index, names, meaning, presence))
    value = names[static_cast<std::size_t>(index)];
}

void ConfigIo::Texts(const char* key, std::vector<std::string>& value, const char* meaning,
                     Presence presence) {
  State& s = *state_;
  const std::vector<std::string_view> views(value.begin(), value.end());
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.WriteTexts(views);
      return;
    case State::Mode::kDescribe:
      s.Document(key, "list of texts", "any texts",
                 views.empty() ? "[]" : fmt::format("[{}]", OneOf(views)), meaning, presence);
      return;
    case State::Mode::kRead: {
      const JsonValue* got = s.Find(key, "a list of texts", presence);
      if (got == nullptr) return;
      if (got->kind != Kind::kArray) return s.Wrong(key, "a list of texts", *got);
      value.clear();
      for (std::size_t i = 0; i < got->items.size(); ++i) {
        const JsonValue& item = got->items[i];
        if (item.kind == Kind::kText && IsPrintable(item.text)) {
          value.push_back(item.text);
        } else {
          s.Wrong(PointerTo(s.Pointer(key), std::to_string(i)),
                  item.kind == Kind::kText ? kLineOfText : "a text", item);
        }
      }
      return;
    }
  }
}

void ConfigIo::QuantityField(const char* key, double& value, Dimension d, NumberRange range,
                             const char* meaning, Presence presence) {
  State& s = *state_;
  const millwright::Dimension dimension{d.second, d.byte, d.flop};
  const std::string range_text = RangeText(range, fmt::format(" {}", BaseUnit(dimension)));
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.out += JsonText(ExactText(value, dimension));
      return;
    case State::Mode::kDescribe:
      s.Document(key, fmt::format("quantity ({})", UnitList(dimension)),
                 range_text.empty() ? "any finite quantity" : range_text,
                 Contains(range, value) ? ExactText(value, dimension) : std::string(kNoDefault),
                 meaning, presence);
      return;
    case State::Mode::kRead: {
      const std::string expected = fmt::format("a number and a unit, such as \"{}\" (units: {})",
                                               ExampleText(dimension), UnitList(dimension));
      const JsonValue* got = s.Find(key, expected, presence);
      if (got == nullptr) return;
      std::optional<double> read;
      if (got->kind == Kind::kText) read = ParseQuantity(got->text, dimension);
      if (!read && got->kind == Kind::kText && BeyondDouble(got->text, dimension)) {
        s.Wrong(key, Article("a quantity", range_text), *got, " (beyond the range of a double)");
      } else if (!read) {
        s.Wrong(key, expected, *got);
      } else if (!Contains(range, *read)) {
        s.Wrong(key, Article("a quantity", range_text), *got);
      } else {
        value = *read;
      }
      return;
    }
  }
}

bool ConfigIo::EnumField(const char* key, int& index, std::span<const std::string_view> words,
                         const char* meaning, Presence presence) {
  State& s = *state_;
  const std::string expected = fmt::format("one of {}", OneOf(words));
  MILLWRIGHT_CHECK(s.reading() || index >= 0);
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.out += JsonText(words[static_cast<std::size_t>(index)]);
      return false;
    case State::Mode::kDescribe:
      s.Document(key, "name", OneOf(words), JsonText(words[static_cast<std::size_t>(index)]),
                 meaning, presence);
      return false;
    case State::Mode::kRead: {
      const JsonValue* got = s.Find(key, expected, presence);
      if (got == nullptr) return false;
      if (got->kind != Kind::kText) {
        s.Wrong(key, expected, *got);
        return false;
      }
      const auto it = std::find(words.begin(), words.end(), got->text);
      if (it == words.end()) {
        s.Wrong(key, expected, *got, DidYouMean(got->text, words));
        return false;
      }
      index = static_cast<int>(it - words.begin());
      return true;
    }
  }
  return false;
}

bool ConfigIo::EnumsField(const char* key, std::vector<int>& indices,
                          std::span<const std::string_view> words, const char* meaning) {
  State& s = *state_;
  std::vector<std::string_view> chosen;
  for (int i : indices) chosen.push_back(words[static_cast<std::size_t>(i)]);
  const std::string expected = fmt::format("a list of names from {}", OneOf(words));
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.WriteTexts(chosen);
      return false;
    case State::Mode::kDescribe:
      s.Document(key, "list of names", OneOf(words),
                 chosen.empty() ? "[]" : fmt::format("[{}]", OneOf(chosen)), meaning,
                 Presence::kOptional);
      return false;
    case State::Mode::kRead: {
      const JsonValue* got = s.Find(key, expected, Presence::kOptional);
      if (got == nullptr) return false;
      if (got->kind != Kind::kArray) {
        s.Wrong(key, expected, *got);
        return false;
      }
      indices.clear();
      for (std::size_t i = 0; i < got->items.size(); ++i) {
        const JsonValue& item = got->items[i];
        const std::string pointer = PointerTo(s.Pointer(key), std::to_string(i));
        const auto it = item.kind == Kind::kText ? std::find(words.begin(), words.end(), item.text)
                                                 : words.end();
        if (it == words.end()) {
          s.Wrong(pointer, fmt::format("one of {}", OneOf(words)), item,
                  item.kind == Kind::kText ? DidYouMean(item.text, words) : "");
          continue;
        }
        const int index = static_cast<int>(it - words.begin());
        if (std::find(indices.begin(), indices.end(), index) != indices.end()) {
          s.Wrong(pointer, "each name at most once", item, " again");
        } else {
          indices.push_back(index);
        }
      }
      return true;
    }
  }
  return false;
}

void ConfigIo::Object(const char* key, const char* meaning, const std::function<void()>& fields,
                      Presence presence) {
  State& s = *state_;
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.Open('{');
      fields();
      s.Shut('}');
      return;
    case State::Mode::kDescribe:
      s.Document(key, "object", "the fields below", "the defaults below", meaning, presence);
      s.Enter(nullptr, s.Pointer(key));
      fields();
      s.Leave();
      return;
    case State::Mode::kRead: {
      const JsonValue* got = s.Find(key, "an object", presence);
      if (got == nullptr) return;
      if (got->kind != Kind::kObject) return s.Wrong(key, "an object", *got);
      s.Enter(got, s.Pointer(key));
      fields();
      s.Leave();
      return;
    }
  }
}

void ConfigIo::OptionalObject(const char* key, bool& present, const char* meaning,
                              const std::function<void()>& fields) {
  State& s = *state_;
  switch (s.mode) {
    case State::Mode::kWrite:
      if (present) Object(key, meaning, fields);
      return;
    case State::Mode::kDescribe:
      s.Document(key, "object", "the fields below, or absent",
                 present ? "the defaults below" : "absent", meaning, Presence::kOptional);
      s.Enter(nullptr, s.Pointer(key));
      fields();
      s.Leave();
      return;
    case State::Mode::kRead:
      present = s.top().object->find(key) != nullptr;
      Object(key, meaning, fields);
      return;
  }
}

void ConfigIo::ArrayField(const char* key, std::size_t size, const char* meaning,
                          const std::function<void(std::size_t)>& resize,
                          const std::function<void(std::size_t)>& element) {
  State& s = *state_;
  switch (s.mode) {
    case State::Mode::kWrite:
      s.WriteKey(key);
      s.Open('[');
      for (std::size_t i = 0; i < size; ++i) {
        s.NextItem();
        s.Open('{');
        element(i);
        s.Shut('}');
      }
      s.Shut(']');
      return;
    case State::Mode::kDescribe:
      s.Document(key, "list of objects", "the fields below, in each", fmt::format("{} items", size),
                 meaning, Presence::kOptional);
      s.Enter(nullptr, PointerTo(s.Pointer(key), "*"));
      element(size);  // past the end: a fresh one
      s.Leave();
      return;
    case State::Mode::kRead: {
      const JsonValue* got = s.Find(key, "a list of objects", Presence::kOptional);
      if (got == nullptr) return;
      if (got->kind != Kind::kArray) return s.Wrong(key, "a list of objects", *got);
      resize(got->items.size());
      for (std::size_t i = 0; i < got->items.size(); ++i) {
        const std::string pointer = PointerTo(s.Pointer(key), std::to_string(i));
        if (got->items[i].kind != Kind::kObject) {
          s.Wrong(pointer, "an object", got->items[i]);
          continue;
        }
        s.Enter(&got->items[i], pointer);
        element(i);
        s.Leave();
      }
      return;
    }
  }
}

void ConfigIo::Problem(const char* key, std::string_view what) {
  State& s = *state_;
  if (!s.reading() || s.FieldMistakes() > s.top().field_mistakes_before) return;
  ++s.problems;
  s.mistakes->Add(s.Pointer(key), what);
}

void ConfigIo::Mistake(const char* key, std::string_view what) {
  State& s = *state_;
  if (s.reading()) s.mistakes->Add(s.Pointer(key), what);
}

void ReadConfig(const std::string& file, std::string_view text,
                const std::function<void(ConfigIo&)>& fields) {
  Mistakes mistakes(file);
  const JsonValue root = ParseJson(file, text, mistakes);
  if (root.kind != Kind::kObject) {
    mistakes.Add("", fmt::format("expected an object, got {}", Quote(root)));
    mistakes.ThrowIfAny();
  }
  auto state = std::make_unique<ConfigIo::State>();
  state->mode = ConfigIo::State::Mode::kRead;
  state->mistakes = &mistakes;
  state->Enter(&root, "");
  ConfigIo io(std::move(state));
  fields(io);
  io.state_->Leave();
  mistakes.ThrowIfAny();
}

std::string WriteConfig(const std::function<void(ConfigIo&)>& fields) {
  auto state = std::make_unique<ConfigIo::State>();
  state->mode = ConfigIo::State::Mode::kWrite;
  state->Open('{');
  ConfigIo io(std::move(state));
  fields(io);
  io.state_->Shut('}');
  return io.state_->out + '\n';
}

std::vector<FieldDoc> DescribeConfig(const std::function<void(ConfigIo&)>& fields) {
  auto state = std::make_unique<ConfigIo::State>();
  state->mode = ConfigIo::State::Mode::kDescribe;
  state->Enter(nullptr, "");
  ConfigIo io(std::move(state));
  fields(io);
  return std::move(io.state_->docs);
}

std::string ReadTextFile(const std::string& file) {
  const auto fail = [&](std::string_view what) {
    Mistakes one(file);
    one.Add("", what);
    one.ThrowIfAny();
  };
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) fail("is a directory, not a file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(file.c_str(), "rb"),
                                                           &std::fclose);
  if (in == nullptr) {
    fail(errno == ENOENT ? std::string("no such file")
                         : fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  std::string text;
  std::array<char, 65536> buffer;
  std::size_t n = 0;
  while ((n = std::fread(buffer.data(), 1, buffer.size(), in.get())) > 0) {
    text.append(buffer.data(), n);
    if (text.size() > kMostFileBytes)
      fail(fmt::format("is longer than {} MiB, too long for a config", kMostFileBytes >> 20));
  }
  if (std::ferror(in.get()) != 0) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
  if (text.empty()) fail("is empty");
  return text;
}

namespace {

// Where a text file goes, and through which other file.
struct Destination {
  fs::path target;
  std::string written;  // then renamed, where `replace`
  bool replace = true;
};

[[noreturn]] void FailToWrite(const std::string& file, std::string_view why) {
  Mistakes one(file);
  one.Add("", why);
  one.ThrowIfAny();
  throw ConfigError(std::string(why));  // not reached
}

std::string CannotBeWritten(int error) {
  return fmt::format("cannot be written: {}", std::strerror(error));
}

Destination DestinationOf(const std::string& file) {
  std::error_code error;
  Destination to{.target = file, .written = file};
  // A link keeps pointing where it did.
  if (fs::is_symlink(to.target, error)) {
    if (const fs::path real = fs::canonical(to.target, error); !error) to.target = real;
  }
  if (fs::is_directory(to.target, error)) FailToWrite(file, "is a directory, not a file");
  // A pipe or device cannot be replaced by a file.
  to.replace = !fs::exists(to.target, error) || fs::is_regular_file(to.target, error);
  to.written =
      to.replace ? fmt::format("{}.{}.tmp", to.target.string(), ::getpid()) : to.target.string();
  return to;
}

}  // namespace

void CheckWritable(const std::string& file) {
  const auto [target, written, replace] = DestinationOf(file);
  std::error_code error;
  if (!replace) {
    if (::access(written.c_str(), W_OK) != 0) FailToWrite(file, CannotBeWritten(errno));
    return;
  }
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, error)) {
    FailToWrite(
        file, fmt::format("there is no directory {}", Printable(folder.string(), kMostNameShown)));
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) FailToWrite(file, CannotBeWritten(errno));
  // A name that is too long cannot even be looked for.
  if (::access(written.c_str(), F_OK) != 0 && errno != ENOENT)
    FailToWrite(file, CannotBeWritten(errno));
}

void WriteTextFile(const std::string& file, std::string_view text) {
  const auto [target, written, replace] = DestinationOf(file);
  const auto fail = [&](int error) { FailToWrite(file, CannotBeWritten(error)); };
  std::error_code error;
  std::FILE* out = std::fopen(written.c_str(), "wb");
  if (out == nullptr) fail(errno);
  int failure = 0;
  if (std::fwrite(text.data(), 1, text.size(), out) != text.size()) failure = errno;
  if (std::fclose(out) != 0 && failure == 0) failure = errno;
  if (failure == 0 && replace && std::rename(written.c_str(), target.c_str()) != 0) failure = errno;
  if (failure != 0) {
    if (replace) fs::remove(written, error);
    fail(failure);
  }
}

std::string_view NearestName(std::string_view word, std::span<const std::string_view> candidates) {
  constexpr std::size_t kMostWord = 200;  // nobody mistypes a longer one
  if (word.size() > kMostWord) return {};
  const auto lower = [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  };
  // Optimal string alignment: insert, delete, change, or swap two neighbours.
  const auto distance = [&](std::string_view a, std::string_view b) {
    std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
      before = std::exchange(last, row);
      row[0] = i;
      for (std::size_t j = 1; j <= b.size(); ++j) {
        const bool same = lower(a[i - 1]) == lower(b[j - 1]);
        row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
        if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
            lower(a[i - 2]) == lower(b[j - 1])) {
          row[j] = std::min(row[j], before[j - 2] + 1);
        }
      }
    }
    return row[b.size()];
  };
  const auto contains = [&](std::string_view whole, std::string_view part) {
    constexpr std::size_t kLeast = 3;
    return part.size() >= kLeast &&
           std::search(whole.begin(), whole.end(), part.begin(), part.end(),
                       [&](char x, char y) { return lower(x) == lower(y); }) != whole.end();
  };
  std::string_view best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  for (const std::string_view candidate : candidates) {
    const std::size_t d = distance(word, candidate);
    const bool near = d <= std::max<std::size_t>(1, word.size() / 3) || contains(candidate, word) ||
                      contains(word, candidate);
    if (near && d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  return best;
}

}  // namespace millwright
