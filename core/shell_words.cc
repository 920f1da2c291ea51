// SPDX-License-Identifier: Apache-2.0
#include "core/shell_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "core/config_io.h"
#include "core/mistakes.h"
#include "core/text_reader.h"

namespace millwright {
namespace {

constexpr std::size_t kMostText = std::size_t{1} << 20;
constexpr int kMostNesting = 64;

bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool EndsWord(char c) {
  return IsBlank(c) || c == '\n' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')' ||
         c == '<' || c == '>';
}

// Words that stand before a command without being part of it.
bool IsKeyword(std::string_view word) {
  static constexpr std::string_view kKeywords[] = {"if",    "then",  "else", "elif", "fi",
                                                   "while", "until", "do",   "done", "esac",
                                                   "{",     "}",     "!",    "time"};
  return std::find(std::begin(kKeywords), std::end(kKeywords), word) != std::end(kKeywords);
}

class Reader : TextReader {
 public:
  Reader(const std::string& file, std::string_view text) : TextReader(file, text) {}

  ShellScript Read() {
    while (!AtEnd()) Step();
    EndCommand();
    return std::move(script_);
  }

 private:
  void Spend(std::size_t bytes) {
    spent_ += bytes;
    if (spent_ > kMostText) Fail("holds more than a megabyte of words, expanded");
  }

  void EndCommand() {
    if (!command_.empty()) {
      if (depth_ > 0 && script_.conditional_line == 0) {
        script_.conditional_line = command_.front().line;
      }
      script_.commands.push_back(std::move(command_));
    }
    command_.clear();
    assigning_ = true;
    exporting_ = false;
  }

  void SkipComment() {
    ShellWord comment{.line = line_};
    while (!AtEnd() && Peek() != '\n') comment.text += Next();
    Spend(comment.text.size());
    script_.comments.push_back(std::move(comment));
  }

  // `<<WORD`: to the line that is WORD.
  void SkipHereDocument() {
    const bool tabs = Peek() == '-';
    if (tabs) Next();
    while (IsBlank(Peek())) Next();
    std::string end;
    while (!AtEnd() && !EndsWord(Peek())) {
      const char c = Next();
      if (c != '"' && c != '\'' && c != '\\') end += c;
    }
    const std::size_t rest = text_.find('\n', at_);
    std::size_t from = rest == std::string_view::npos ? text_.size() : rest + 1;
    while (from < text_.size()) {
      const std::size_t to = std::min(text_.find('\n', from), text_.size());
      std::string_view one = text_.substr(from, to - from);
      while (tabs && one.starts_with('\t')) one.remove_prefix(1);
      if (one == end) break;
      from = to + 1;
    }
    // The body is cut out: what is left of this line comes first.
    skip_from_ = rest;
    skip_to_ = std::min(text_.find('\n', std::min(from, text_.size())), text_.size());
  }

  void Step() {
    if (at_ == skip_from_ && skip_to_ > at_) {
      while (at_ < skip_to_) Next();
      skip_from_ = std::string_view::npos;
      return;
    }
    const char c = Peek();
    if (IsBlank(c)) {
      Next();
    } else if (c == '\\' && (Peek(1) == '\n' || (Peek(1) == '\r' && Peek(2) == '\n'))) {
      Next();
      while (Next() != '\n') continue;
    } else if (c == '#') {
      SkipComment();
    } else if (c == '(' && !command_.empty() && IsBlank(text_[at_ - 1])) {
      // No shell takes it, but lists of arguments that are not for a shell have it unquoted.
      command_.push_back({.line = line_});
      while (!AtEnd() && !IsBlank(Peek()) && Peek() != '\n') command_.back().text += Next();
      Spend(command_.back().text.size());
    } else if (c == '\n' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')') {
      Next();
      EndCommand();
    } else if (c == '<' || c == '>') {
      Next();
      if (c == '<' && Peek() == '<' && Peek(1) != '<') {
        Next();
        SkipHereDocument();
        return;
      }
      while (Peek() == '<' || Peek() == '>' || Peek() == '&') Next();
      while (IsBlank(Peek())) Next();
      if (!AtEnd() && !EndsWord(Peek())) ReadWord();  // where it goes to
    } else if (!(assigning_ && Assignment())) {
      TakeWord();
    }
  }

  void TakeWord() {
    const int line = line_;
    const std::size_t begin = at_;
    std::vector<ShellWord> words = ReadWord();
    // `2>` and the like: the number belongs to the redirection.
    const std::string_view written = text_.substr(begin, at_ - begin);
    if ((Peek() == '<' || Peek() == '>') &&
        written.find_first_not_of("0123456789") == std::string_view::npos) {
      return;
    }
    for (ShellWord& word : words) {
      if (command_.empty() && assigning_) {
        const std::string& text = word.text;
        if (text == "if" || text == "while" || text == "until" || text == "for" || text == "case") {
          ++depth_;
        }
        if ((text == "fi" || text == "done" || text == "esac") && depth_ > 0) --depth_;
        if (IsKeyword(text)) continue;
        if (text == "export" || text == "declare" || text == "local" || text == "readonly") {
          exporting_ = true;
          continue;
        }
      }
      if (exporting_ && command_.empty()) continue;  // its options, or a name alone
      assigning_ = false;
      command_.push_back(std::move(word));
      if (command_.back().line == 0) command_.back().line = line;
    }
  }

  // NAME=..., NAME+=... where a command may begin; false where there is none.
  bool Assignment() {
    std::size_t end = at_;
    if (end >= text_.size() || !IsNameStart(text_[end])) return false;
    while (end < text_.size() && IsNameCharacter(text_[end])) ++end;
    const std::string name(text_.substr(at_, end - at_));
    const bool append = end < text_.size() && text_[end] == '+';
    if (append) ++end;
    if (end >= text_.size() || text_[end] != '=') return false;
    at_ = end + 1;
    if (depth_ > 0 && script_.conditional_line == 0) script_.conditional_line = line_;
    if (Peek() == '(') {
      Next();
      std::vector<ShellWord> words = ArrayWords();
      if (!script_.arrays.contains(name)) script_.array_order.push_back(name);
      std::vector<ShellWord>& array = script_.arrays[name];
      if (!append) array.clear();
      for (ShellWord& word : words) array.push_back(std::move(word));
      return true;
    }
    std::string value;
    if (!AtEnd() && !EndsWord(Peek())) {
      for (const ShellWord& word : ReadWord(/*split=*/false)) value += word.text;
    }
    std::string& variable = script_.variables[name];
    variable = append ? variable + value : value;
    Spend(variable.size());
    return true;
  }

  std::vector<ShellWord> ArrayWords() {
    std::vector<ShellWord> all;
    while (!AtEnd() && Peek() != ')') {
      const char c = Peek();
      if (EndsWord(c)) {
        Next();
      } else if (c == '\\' && (Peek(1) == '\n' || (Peek(1) == '\r' && Peek(2) == '\n'))) {
        Next();
        while (Next() != '\n') continue;
      } else if (c == '#') {
        SkipComment();
      } else {
        const int line = line_;
        for (ShellWord& word : ReadWord()) {
          if (word.line == 0) word.line = line;
          all.push_back(std::move(word));
        }
      }
    }
    if (AtEnd()) Fail("an array is not closed: expected \")\"");
    Next();
    return all;
  }

  // What the word at hand becomes: itself, or as many as its expansions have.  `split`: whether
  // blanks in an expansion divide it.
  std::vector<ShellWord> ReadWord(bool split = true) {
    std::vector<ShellWord> words;
    std::string current;
    bool started = false;
    int line = 0;  // of an array's element; 0: here
    const auto finish = [&] {
      if (started) words.push_back({current, line});
      current.clear();
      started = false;
      line = 0;
    };
    while (!AtEnd() && !EndsWord(Peek())) {
      const char c = Peek();
      if (c == '\'') {
        started = true;
        Next();
        while (!AtEnd() && Peek() != '\'') current += Next();
        if (AtEnd()) Fail("a quotation is not closed: expected \"'\"");
        Next();
      } else if (c == '"') {
        started = true;
        Next();
        while (!AtEnd() && Peek() != '"') {
          if (Peek() == '\\' && at_ + 1 < text_.size()) {
            Next();
            const char escaped = Next();
            if (escaped == '\n') continue;
            if (escaped != '"' && escaped != '\\' && escaped != '$' && escaped != '`') {
              current += '\\';
            }
            current += escaped;
          } else if (Peek() == '$' || Peek() == '`') {
            const std::vector<ShellWord> parts = Expand();
            // Each element of "${ARRAY[@]}" is a word of its own, and none makes none.
            if (parts.empty() && current.empty()) started = false;
            for (std::size_t i = 0; i < parts.size(); ++i) {
              if (i > 0) {
                finish();
                started = true;
              }
              current += parts[i].text;
              line = parts[i].line;
            }
          } else {
            current += Next();
          }
        }
        if (AtEnd()) Fail("a quotation is not closed: expected '\"'");
        Next();
      } else if (c == '\\') {
        Next();
        if (AtEnd()) break;
        const char escaped = Next();
        if (escaped == '\n') continue;
        started = true;
        current += escaped;
      } else if (c == '$' || c == '`') {
        const std::vector<ShellWord> parts = Expand();
        for (std::size_t i = 0; i < parts.size(); ++i) {
          if (i > 0) finish();
          line = parts[i].line;
          std::string_view rest = parts[i].text;
          while (!rest.empty()) {
            const std::size_t end = split ? rest.find_first_of(" \t\r\n") : rest.size();
            const std::string_view field = rest.substr(0, end);
            if (!field.empty()) {
              started = true;
              current += field;
            }
            if (field.size() == rest.size()) break;
            finish();
            rest.remove_prefix(field.size() + 1);
          }
        }
      } else {
        started = true;
        current += Next();
      }
      if (current.size() > kMostText) Fail("a word is longer than a megabyte");
    }
    finish();
    for (const ShellWord& word : words) Spend(word.text.size());
    return words;
  }

  // At '$' or '`'.  One part, or the elements of an array.
  std::vector<ShellWord> Expand() {
    if (++nesting_ > kMostNesting) Fail("more than 64 levels of nesting");
    std::vector<ShellWord> parts = ExpandHere();
    --nesting_;
    for (const ShellWord& part : parts) Spend(part.text.size() + 1);
    return parts;
  }

  std::vector<ShellWord> ExpandHere() {
    const ShellWord unknown{.text = std::string(1, kUnknown)};
    if (Next() == '`') {
      while (!AtEnd() && Peek() != '`') Next();
      if (!AtEnd()) Next();
      return {unknown};
    }
    if (Peek() == '(' && Peek(1) == '(') {
      const std::size_t begin = at_ + 2;
      SkipParentheses();
      if (at_ < begin + 2) return {unknown};
      return {{.text = Arithmetic(text_.substr(begin, at_ - 2 - begin))}};
    }
    if (Peek() == '(') {
      SkipParentheses();
      return {unknown};
    }
    if (Peek() == '{') {
      Next();
      return Braces();
    }
    if (IsNameStart(Peek())) {
      std::string name;
      while (IsNameCharacter(Peek())) name += Next();
      return {{.text = ValueOf(name).value_or(unknown.text)}};
    }
    if (std::string_view("@*#?$!-0123456789").find(Peek()) != std::string_view::npos && !AtEnd()) {
      Next();
      return {unknown};
    }
    return {{.text = "$"}};
  }

  std::optional<std::string> ValueOf(const std::string& name) const {
    if (const auto it = script_.variables.find(name); it != script_.variables.end()) {
      return it->second;
    }
    if (const auto it = script_.arrays.find(name); it != script_.arrays.end()) {
      return it->second.empty() ? std::string() : it->second.front().text;
    }
    return {};
  }

  // Behind "${".
  std::vector<ShellWord> Braces() {
    const ShellWord unknown{.text = std::string(1, kUnknown)};
    std::string name;
    while (IsNameCharacter(Peek())) name += Next();
    bool elements = false, index = false;
    if (Peek() == '[') {
      std::string inside;
      Next();
      while (!AtEnd() && Peek() != ']' && Peek() != '\n') inside += Next();
      if (Peek() == ']') Next();
      elements = inside == "@" || inside == "*";
      index = !elements;
    }
    std::string operation;
    while (std::string_view(":-+=?").find(Peek()) != std::string_view::npos && !AtEnd() &&
           operation.size() < 2) {
      operation += Next();
      if (operation.back() != ':') break;
    }
    std::string word;
    while (!AtEnd() && Peek() != '}') {
      if (Peek() == '\\' && at_ + 1 < text_.size()) {
        Next();
        word += Next();
      } else if (Peek() == '$' || Peek() == '`') {
        for (const ShellWord& part : Expand()) word += part.text;
      } else if (Peek() == '"' || Peek() == '\'') {
        Next();
      } else {
        word += Next();
      }
      if (word.size() > kMostText) Fail("a word is longer than a megabyte");
    }
    if (AtEnd()) Fail("an expansion is not closed: expected \"}\"");
    Next();
    if (name.empty() || index) return {unknown};
    if (elements && operation.empty() && word.empty()) {
      const auto it = script_.arrays.find(name);
      if (it == script_.arrays.end()) return {{.text = ValueOf(name).value_or(unknown.text)}};
      return it->second;
    }
    const std::optional<std::string> value = ValueOf(name);
    const bool empty = !value || (operation.starts_with(':') && value->empty());
    if (operation.empty() && word.empty()) return {{.text = value.value_or(unknown.text)}};
    if (operation == ":-" || operation == "-" || operation == ":=" || operation == "=") {
      return {{.text = empty ? word : *value}};
    }
    if (operation == ":+" || operation == "+") return {{.text = empty ? "" : word}};
    if (operation == ":?" || operation == "?") return {{.text = value.value_or(unknown.text)}};
    return {unknown};  // ${NAME%...} and others
  }

  void SkipParentheses() {
    int open = 0;
    while (!AtEnd()) {
      const char c = Next();
      if (c == '\'' || c == '"') {
        while (!AtEnd() && Peek() != c) Next();
        if (!AtEnd()) Next();
      }
      if (c == '(') ++open;
      if (c == ')' && --open == 0) return;
    }
    Fail("a parenthesis is not closed: expected \")\"");
  }

  // Integers, variables, + - * / % and parentheses.
  std::string Arithmetic(std::string_view expression) {
    std::size_t at = 0;
    int depth = 0;
    const std::optional<std::int64_t> value = Sum(expression, at, depth);
    while (at < expression.size() && std::isspace(static_cast<unsigned char>(expression[at])) != 0)
      ++at;
    if (!value || at != expression.size()) return std::string(1, kUnknown);
    return fmt::format("{}", *value);
  }
  static char Skip(std::string_view e, std::size_t& at) {
    while (at < e.size() && std::isspace(static_cast<unsigned char>(e[at])) != 0) ++at;
    return at < e.size() ? e[at] : '\0';
  }
  using Integer = std::optional<std::int64_t>;
  Integer Sum(std::string_view e, std::size_t& at, int& depth) const {
    Integer left = Product(e, at, depth);
    for (char c = Skip(e, at); left && (c == '+' || c == '-'); c = Skip(e, at)) {
      ++at;
      const Integer right = Product(e, at, depth);
      std::int64_t result = 0;
      if (!right || (c == '+' ? __builtin_add_overflow(*left, *right, &result)
                              : __builtin_sub_overflow(*left, *right, &result))) {
        return {};
      }
      left = result;
    }
    return left;
  }
  Integer Product(std::string_view e, std::size_t& at, int& depth) const {
    Integer left = Factor(e, at, depth);
    for (char c = Skip(e, at); left && (c == '*' || c == '/' || c == '%'); c = Skip(e, at)) {
      ++at;
      const Integer right = Factor(e, at, depth);
      std::int64_t result = 0;
      if (!right) return {};
      if (c == '*') {
        if (__builtin_mul_overflow(*left, *right, &result)) return {};
      } else if (*right <= 0) {
        return {};  // by zero; and nobody divides by a negative number here
      } else {
        result = c == '/' ? *left / *right : *left % *right;
      }
      left = result;
    }
    return left;
  }
  Integer Factor(std::string_view e, std::size_t& at, int& depth) const {
    char c = Skip(e, at);
    if (c == '(') {
      if (++depth > kMostNesting) return {};
      ++at;
      const Integer inside = Sum(e, at, depth);
      if (Skip(e, at) != ')') return {};
      ++at;
      --depth;
      return inside;
    }
    std::string text;
    if (c == '$') {
      ++at;
      c = Skip(e, at);
    }
    const bool braces = c == '{';
    if (braces) ++at;
    while (at < e.size() && IsNameCharacter(e[at])) text += e[at++];
    if (braces && (at >= e.size() || e[at++] != '}')) return {};
    if (text.empty()) return {};
    if (IsNameStart(text[0])) {
      const std::optional<std::string> value = ValueOf(text);
      if (!value) return {};
      text = *value;
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return {};
    return value;
  }

  std::size_t skip_from_ = std::string_view::npos, skip_to_ = 0;
  std::size_t spent_ = 0;
  int depth_ = 0, nesting_ = 0;
  bool assigning_ = true;   // an assignment may stand here
  bool exporting_ = false;  // behind `export`
  ShellCommand command_;
  ShellScript script_;
};

}  // namespace

ShellScript ReadShell(const std::string& file, std::string_view text) {
  return Reader(file, text).Read();
}

}  // namespace millwright
