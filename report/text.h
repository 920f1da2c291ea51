// SPDX-License-Identifier: Apache-2.0
//
// Text for a terminal: aligned tables, wrapped paragraphs, bold where the terminal has it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millwright {

struct Style {
  bool color = false;
  int width = 100;
};

std::string Bold(std::string_view text, const Style& style);
std::string Dim(std::string_view text, const Style& style);

// Broken at blanks into lines of at most `width` columns, `indent` of them blank.
std::string Wrapped(std::string_view text, int width, int indent);

// `count` in columns: code points, which is right for all that is printed here.
int Columns(std::string_view text);

enum class Align { kLeft, kRight };

// Columns as wide as their widest cell, a blank or two apart.  Cells of the last column that are
// too long for the width go on in the next line, broken behind a comma or a blank.
class TextTable {
 public:
  // `gap`: blanks behind it.
  void Column(std::string title, Align align = Align::kRight, int gap = 2);
  void Row(std::vector<std::string> cells);  // one for each column
  // Leaves out columns of which every cell is as given.
  void DropIfAll(std::string_view title, std::string_view cell);
  // Leaves out a column where otherwise breaking the last one would not be enough.
  void DropIfWide(std::string_view title, const Style& style);
  std::string Text(const Style& style, int indent = 0) const;  // ends in a newline
  std::size_t rows() const { return rows_.size(); }

 private:
  struct Heading {
    std::string title;
    Align align;
    int gap;
  };
  void Drop(std::size_t index);
  std::size_t IndexOf(std::string_view title) const;  // columns_.size(): there is none
  std::vector<int> Widths() const;

  std::vector<Heading> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// A share between 0 and 1 as a bar of '#', `most` at 1.
std::string Bar(double share, int most);

std::string Percent(double share);  // "50.1%"
std::string Percent(double share, int decimals);
std::string Signed(std::string_view formatted, bool negative);  // "+1.2 s"

// "1 node", "16 nodes".
std::string Counted(std::int64_t count, std::string_view noun);

}  // namespace millwright
