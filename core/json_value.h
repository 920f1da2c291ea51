// SPDX-License-Identifier: Apache-2.0
//
// What a JSON text says, kept so that a message can quote it as it was written.
//
// Accepts RFC 8259 and the three words that Python's json module adds (NaN, Infinity,
// -Infinity); those, and numbers past the range of a double (1e400), become kNotFinite values,
// for the reader of the field to judge.  Integers past 64 bits stay apart from other numbers.
// Limits: 64 levels of nesting, a million values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/mistakes.h"

namespace millwright {

struct JsonMember;

struct JsonValue {
  enum class Kind {
    kNull,
    kBool,
    kInteger,
    kHugeInteger,  // does not fit std::int64_t
    kNumber,       // was written with a point or an exponent
    kNotFinite,
    kText,
    kArray,
    kObject,
  };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;  // of kText; of numbers, as they were written
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;

  // The last member of that name, or null.
  const JsonValue* find(std::string_view key) const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// Throws ConfigError "FILE: line L, column C: ..." where `text` is not JSON; columns count bytes.
// Duplicate keys go to `mistakes`, each with its pointer.
JsonValue ParseJson(const std::string& file, std::string_view text, Mistakes& mistakes);

// The value as compact JSON for a message, at most 60 bytes.  A number that is not a plain one
// says why: "1e400 (beyond the range of a double)".
std::string Quote(const JsonValue& value);

// `text` between quotation marks and escaped, as JSON writes it.
std::string JsonText(std::string_view text);

}  // namespace millwright
