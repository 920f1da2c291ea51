// SPDX-License-Identifier: Apache-2.0
//
// One list of fields per config struct, used four ways.
//
// A struct that a file can hold has one function
//
//     void Fields(ConfigIo& io, TrainingConfig& c) {
//       io.Int("global_batch_size", c.global_batch_size, {.min = 1}, "sequences in one step");
//       io.Enum("precision", c.precision, kPrecisionNames, "what the matrix products run in");
//       io.Quantity("nic_bandwidth", c.nic_bandwidth, kPositive, "per NIC and direction");
//     }
//
// and that list reads the struct from JSON, writes it, finds unknown keys (with a
// did-you-mean) and documents it for `millwright describe`.  Reading collects
// every mistake of a file before it throws ConfigError: one line a mistake, as
//
//     FILE: at /POINTER: expected WHAT IS ACCEPTED, got VALUE
//
// Nothing here knows a domain struct, and no JSON library shows in this header.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"

namespace millwright {

// The input is wrong.  what() holds every mistake found, one a line.  Exit code 2.
struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class E>
struct EnumName {
  E value;
  std::string_view name;
};

// Of the value; empty where it has none.
template <class E>
std::string_view NameIn(std::span<const EnumName<E>> names, E value) {
  for (const EnumName<E>& one : names) {
    if (one.value == value) return one.name;
  }
  return {};
}

struct IntRange {
  std::int64_t min = 0;
  std::int64_t max = std::int64_t{1} << 40;
};

// Accepted numbers, in the quantity's SI base unit; a value that is not finite never is.
struct NumberRange {
  double min = -std::numeric_limits<double>::max();
  double max = std::numeric_limits<double>::max();
  bool min_open = false;  // min itself is refused
};
inline constexpr NumberRange kPositive{.min = 0, .min_open = true};
inline constexpr NumberRange kNotNegative{.min = 0};

enum class Presence { kOptional, kRequired };

// One documented field, as `describe` prints it.
struct FieldDoc {
  std::string pointer;  // "/training/seq_length"
  std::string type;     // "integer", "quantity (B, KiB, ...)", "one of ..."
  std::string accepted;
  std::string default_value;
  std::string meaning;
};

class ConfigIo {
 public:
  ~ConfigIo();
  ConfigIo(const ConfigIo&) = delete;
  ConfigIo& operator=(const ConfigIo&) = delete;

  void Int(const char* key, int& value, IntRange range, const char* meaning,
           Presence presence = Presence::kOptional);
  void Int(const char* key, std::int64_t& value, IntRange range, const char* meaning,
           Presence presence = Presence::kOptional);
  void Ints(const char* key, std::vector<int>& value, IntRange range, const char* meaning);
  void Number(const char* key, double& value, NumberRange range, const char* meaning,
              Presence presence = Presence::kOptional);
  void Bool(const char* key, bool& value, const char* meaning,
            Presence presence = Presence::kOptional);
  // Texts are lines that may reach a terminal: control characters in them are refused.
  void Text(const char* key, std::string& value, const char* meaning,
            Presence presence = Presence::kOptional);
  // A text that is one of `names`.
  void Name(const char* key, std::string& value, std::span<const std::string_view> names,
            const char* meaning, Presence presence = Presence::kOptional);
  void Texts(const char* key, std::vector<std::string>& value, const char* meaning,
             Presence presence = Presence::kOptional);

  // A number and a unit in one string, such as "400 Gb/s"; a bare number is refused.
  template <int S, int B, int F>
  void Quantity(const char* key, millwright::Quantity<S, B, F>& value, NumberRange range,
                const char* meaning, Presence presence = Presence::kOptional) {
    QuantityField(key, value.value, Dimension{S, B, F}, range, meaning, presence);
  }

  // An enumeration by name.
  template <class E>
  void Enum(const char* key, E& value, std::span<const EnumName<E>> names, const char* meaning,
            Presence presence = Presence::kOptional) {
    std::vector<std::string_view> words;
    int index = -1;
    for (std::size_t i = 0; i < names.size(); ++i) {
      words.push_back(names[i].name);
      if (names[i].value == value) index = static_cast<int>(i);
    }
    if (EnumField(key, index, words, meaning, presence)) value = names[index].value;
  }

  // A list of enumeration names, each at most once.
  template <class E>
  void Enums(const char* key, std::vector<E>& value, std::span<const EnumName<E>> names,
             const char* meaning) {
    std::vector<std::string_view> words;
    std::vector<int> indices;
    for (const auto& n : names) words.push_back(n.name);
    for (E e : value)
      for (std::size_t i = 0; i < names.size(); ++i)
        if (names[i].value == e) indices.push_back(static_cast<int>(i));
    if (EnumsField(key, indices, words, meaning)) {
      value.clear();
      for (int i : indices) value.push_back(names[i].value);
    }
  }

  // A nested object; `fields` lists its fields on this same io.
  void Object(const char* key, const char* meaning, const std::function<void()>& fields,
              Presence presence = Presence::kOptional);

  // A nested object that may be absent: reading sets `present` when the key is there;
  // writing leaves it out when `present` is false.
  void OptionalObject(const char* key, bool& present, const char* meaning,
                      const std::function<void()>& fields);

  // An array of objects.
  template <class T>
  void Array(const char* key, std::vector<T>& items, const char* meaning,
             const std::function<void(T&)>& fields) {
    ArrayField(
        key, items.size(), meaning, [&](std::size_t n) { items.assign(n, T{}); },
        [&](std::size_t i) {
          if (i < items.size()) {
            fields(items[i]);
          } else {  // documenting an empty array: show the fields of one
            T one{};
            fields(one);
          }
        });
  }

  // The same; writing leaves it out where it is empty.
  template <class T>
  void OptionalArray(const char* key, std::vector<T>& items, const char* meaning,
                     const std::function<void(T&)>& fields) {
    if (!items.empty() || !writing()) Array<T>(key, items, meaning, fields);
  }

  // A mistake that involves more than one field, named at `key` of the current object.
  // Ignored unless reading, and where a field of the current object is already wrong by itself:
  // fields are only compared once each is sound.
  void Problem(const char* key, std::string_view what);
  // A mistake of that field alone, which silences Problem() as any other wrong field does.
  void Mistake(const char* key, std::string_view what);
  bool reading() const;
  bool writing() const;

 private:
  friend void ReadConfig(const std::string& file, std::string_view text,
                         const std::function<void(ConfigIo&)>& fields);
  friend std::string WriteConfig(const std::function<void(ConfigIo&)>& fields);
  friend std::vector<FieldDoc> DescribeConfig(const std::function<void(ConfigIo&)>& fields);

  struct Dimension {
    int second, byte, flop;
  };
  struct State;
  explicit ConfigIo(std::unique_ptr<State> state);

  void QuantityField(const char* key, double& value, Dimension d, NumberRange range,
                     const char* meaning, Presence presence);
  bool EnumField(const char* key, int& index, std::span<const std::string_view> words,
                 const char* meaning, Presence presence);
  bool EnumsField(const char* key, std::vector<int>& indices,
                  std::span<const std::string_view> words, const char* meaning);
  void ArrayField(const char* key, std::size_t size, const char* meaning,
                  const std::function<void(std::size_t)>& resize,
                  const std::function<void(std::size_t)>& element);

  std::unique_ptr<State> state_;
};

// Reads `text` (the contents of `file`, which only messages use).  Throws ConfigError
// with every mistake; where it throws, what `fields` filled in is not to be used.
void ReadConfig(const std::string& file, std::string_view text,
                const std::function<void(ConfigIo&)>& fields);

// Pretty-printed JSON ending in a newline; keys in the order listed.
std::string WriteConfig(const std::function<void(ConfigIo&)>& fields);

// Every field, depth first, with the defaults that the structs hold.
std::vector<FieldDoc> DescribeConfig(const std::function<void(ConfigIo&)>& fields);

// The whole file; ConfigError for a missing file, a directory, an unreadable, empty, or
// over-long one (a config is at most 16 MiB).
std::string ReadTextFile(const std::string& file);

// Writes whole or not at all (a temporary file beside it, then rename).  ConfigError if it cannot.
void WriteTextFile(const std::string& file, std::string_view text);

// ConfigError where it is plain beforehand that WriteTextFile would fail; writes nothing.
void CheckWritable(const std::string& file);

// The candidate nearest to `word` by edit distance, or empty where none is near enough to suggest.
std::string_view NearestName(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace millwright
