// SPDX-License-Identifier: Apache-2.0
#include "core/toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <vector>

#include "core/config_io.h"
#include "core/text_reader.h"

namespace millwright {
namespace {

constexpr int kMostNesting = 64;

class Parser : TextReader {
 public:
  Parser(const std::string& file, std::string_view text) : TextReader(file, text) {}

  JsonValue Parse() {
    JsonValue root{.kind = JsonValue::Kind::kObject};
    JsonValue* table = &root;
    while (SkipLines()) {
      if (Peek() == '[') {
        Next();
        if (Peek() == '[') Fail("arrays of tables are not read");
        table = Open(root, Keys(), true);
        if (Peek() != ']') Fail("expected \"]\"");
        Next();
      } else {
        Assign(*table, 0);
      }
      SkipBlanks();
      if (Peek() == '#') SkipComment();
      if (Peek() == '\r') Next();
      if (!AtEnd() && Peek() != '\n') Fail("expected the end of the line");
    }
    return root;
  }

 private:
  void SkipBlanks() {
    while (Peek() == ' ' || Peek() == '\t') Next();
  }
  void SkipComment() {
    while (!AtEnd() && Peek() != '\n') Next();
  }
  // To the next thing that is said; false at the end.
  bool SkipLines() {
    while (!AtEnd()) {
      if (Peek() == '#') {
        SkipComment();
      } else if (std::isspace(static_cast<unsigned char>(Peek())) != 0) {
        Next();
      } else {
        return true;
      }
    }
    return false;
  }

  std::string String() {
    const char quote = Next();
    if (Peek() == quote && at_ + 1 < text_.size() && text_[at_ + 1] == quote) {
      Fail("strings over several lines are not read");
    }
    std::string value;
    while (Peek() != quote) {
      if (AtEnd() || Peek() == '\n') Fail("a string is not closed");
      const char c = Next();
      if (c != '\\' || quote == '\'') {
        value += c;
        continue;
      }
      const char escaped = AtEnd() ? '\0' : Next();
      switch (escaped) {
        case 'n':
          value += '\n';
          break;
        case 't':
          value += '\t';
          break;
        case '"':
        case '\\':
          value += escaped;
          break;
        default:
          Fail("expected \\n, \\t, \\\" or \\\\");
      }
    }
    Next();
    return value;
  }

  std::vector<std::string> Keys() {
    std::vector<std::string> keys;
    while (true) {
      SkipBlanks();
      std::string key;
      if (Peek() == '"' || Peek() == '\'') {
        key = String();
      } else {
        while (std::isalnum(static_cast<unsigned char>(Peek())) != 0 || Peek() == '_' ||
               Peek() == '-') {
          key += Next();
        }
        if (key.empty()) Fail("expected a key");
      }
      keys.push_back(std::move(key));
      if (int(keys.size()) > kMostNesting) Fail("more than 64 levels of nesting");
      SkipBlanks();
      if (Peek() != '.') return keys;
      Next();
    }
  }

  // The table of that name, made where there is none.
  JsonValue* Open(JsonValue& from, const std::vector<std::string>& keys, bool once) {
    JsonValue* table = &from;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto found = std::find_if(table->members.begin(), table->members.end(),
                                      [&](const JsonMember& m) { return m.key == keys[i]; });
      if (found == table->members.end()) {
        table->members.push_back({keys[i], {.kind = JsonValue::Kind::kObject}});
        table = &table->members.back().value;
      } else if (found->value.kind != JsonValue::Kind::kObject) {
        Fail(fmt::format("{} is a value, not a table", Printable(keys[i], kMostNameShown)));
      } else {
        table = &found->value;
        if (once && i + 1 == keys.size() && !table->members.empty() &&
            std::none_of(table->members.begin(), table->members.end(), [](const JsonMember& m) {
              return m.value.kind == JsonValue::Kind::kObject;
            })) {
          Fail(fmt::format("table {} is given twice", Printable(keys[i], kMostNameShown)));
        }
      }
    }
    return table;
  }

  void Assign(JsonValue& table, int depth) {
    std::vector<std::string> keys = Keys();
    if (Peek() != '=') Fail("expected \"=\"");
    Next();
    const std::string key = std::move(keys.back());
    keys.pop_back();
    JsonValue value = Value(depth);
    JsonValue* into = Open(table, keys, false);
    if (into->find(key) != nullptr) {
      Fail(fmt::format("{} is given twice", Printable(key, kMostNameShown)));
    }
    into->members.push_back({key, std::move(value)});
  }

  JsonValue Value(int depth) {
    if (depth > kMostNesting) Fail("more than 64 levels of nesting");
    SkipBlanks();
    const char c = Peek();
    if (c == '"' || c == '\'') return {.kind = JsonValue::Kind::kText, .text = String()};
    if (c == '[') return Array(depth);
    if (c == '{') return Inline(depth);
    std::string word;
    while (std::isalnum(static_cast<unsigned char>(Peek())) != 0 || Peek() == '_' ||
           Peek() == '-' || Peek() == '+' || Peek() == '.' || Peek() == ':') {
      word += Next();
    }
    if (word == "true" || word == "false") {
      return {.kind = JsonValue::Kind::kBool, .boolean = word == "true"};
    }
    return Number(word);
  }

  JsonValue Number(const std::string& word) {
    std::string digits;
    for (const char c : word) {
      if (c != '_') digits += c;
    }
    if (digits.starts_with('+')) digits.erase(0, 1);
    JsonValue value{.text = word};
    const char* end = digits.data() + digits.size();
    if (const auto read = std::from_chars(digits.data(), end, value.integer);
        read.ec == std::errc() && read.ptr == end) {
      value.kind = JsonValue::Kind::kInteger;
      value.number = double(value.integer);
      return value;
    }
    if (const auto read = std::from_chars(digits.data(), end, value.number);
        !digits.empty() && read.ec == std::errc() && read.ptr == end) {
      value.kind =
          std::isfinite(value.number) ? JsonValue::Kind::kNumber : JsonValue::Kind::kNotFinite;
      return value;
    }
    Fail(fmt::format("expected a value, got \"{}\"", Printable(word, kMostNameShown)));
  }

  JsonValue Array(int depth) {
    JsonValue array{.kind = JsonValue::Kind::kArray};
    Next();
    while (SkipLines() && Peek() != ']') {
      array.items.push_back(Value(depth + 1));
      SkipLines();
      if (Peek() != ',' && Peek() != ']') Fail("expected \",\" or \"]\"");
      if (Peek() == ',') Next();
    }
    if (AtEnd()) Fail("an array is not closed: expected \"]\"");
    Next();
    return array;
  }

  JsonValue Inline(int depth) {
    JsonValue table{.kind = JsonValue::Kind::kObject};
    Next();
    SkipBlanks();
    while (Peek() != '}') {
      Assign(table, depth + 1);
      SkipBlanks();
      if (Peek() != ',' && Peek() != '}') Fail("expected \",\" or \"}\"");
      if (Peek() == ',') Next();
      SkipBlanks();
    }
    Next();
    return table;
  }
};

}  // namespace

JsonValue ParseToml(const std::string& file, std::string_view text) {
  return Parser(file, text).Parse();
}

}  // namespace millwright
