// SPDX-License-Identifier: Apache-2.0
#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/unit_text.h"

namespace millwright {
namespace {

constexpr int kLeastLast = 12;  // to which a last column is narrowed: "mla_up_proj,"

std::string Code(std::string_view text, const Style& style, int code) {
  return style.color ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

// `text` in pieces of at most `width` columns, broken behind commas (not those inside numbers)
// and at blanks.
std::vector<std::string> Pieces(std::string_view text, int width) {
  std::vector<std::string> pieces;
  while (Columns(text) > width) {
    std::size_t cut = 0;
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      const bool breaks = text[i] == ' ' || (text[i] == ',' && text[i + 1] != ' ' &&
                                             (text[i + 1] < '0' || text[i + 1] > '9'));
      if (!breaks) continue;
      if (cut > 0 && int(i) >= width) break;
      cut = i + 1;
    }
    if (cut == 0) break;
    pieces.emplace_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  if (!text.empty() || pieces.empty()) pieces.emplace_back(text);
  return pieces;
}

}  // namespace

std::string Bold(std::string_view text, const Style& style) { return Code(text, style, 1); }
std::string Dim(std::string_view text, const Style& style) { return Code(text, style, 2); }

int Columns(std::string_view text) {
  return int(std::count_if(text.begin(), text.end(),
                           [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Wrapped(std::string_view text, int width, int indent) {
  std::string out(indent, ' ');
  int column = indent;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (column > indent && column + 1 + Columns(word) > width) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += Columns(word);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

void TextTable::Column(std::string title, Align align, int gap) {
  columns_.push_back({std::move(title), align, gap});
}

void TextTable::Row(std::vector<std::string> cells) {
  MILLWRIGHT_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::size_t TextTable::IndexOf(std::string_view title) const {
  std::size_t i = 0;
  while (i < columns_.size() && columns_[i].title != title) ++i;
  return i;
}

void TextTable::Drop(std::size_t index) {
  columns_.erase(columns_.begin() + std::ptrdiff_t(index));
  for (auto& row : rows_) row.erase(row.begin() + std::ptrdiff_t(index));
}

void TextTable::DropIfAll(std::string_view title, std::string_view cell) {
  const std::size_t index = IndexOf(title);
  if (index == columns_.size()) return;
  if (std::all_of(rows_.begin(), rows_.end(),
                  [&](const auto& row) { return row[index] == cell; })) {
    Drop(index);
  }
}

void TextTable::DropIfWide(std::string_view title, const Style& style) {
  const std::size_t index = IndexOf(title);
  if (index == columns_.size()) return;
  std::vector<int> widths = Widths();
  widths.back() = std::min(widths.back(), kLeastLast);
  int width = -columns_.back().gap;
  for (std::size_t i = 0; i < columns_.size(); ++i) width += widths[i] + columns_[i].gap;
  if (width > style.width) Drop(index);
}

std::vector<int> TextTable::Widths() const {
  std::vector<int> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    int width = Columns(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, Columns(row[i]));
    widths.push_back(width);
  }
  return widths;
}

std::string TextTable::Text(const Style& style, int indent) const {
  const std::vector<int> widths = Widths();
  int before = indent;  // columns in front of the last
  for (std::size_t i = 0; i + 1 < columns_.size(); ++i) before += widths[i] + columns_[i].gap;
  const int last = std::max(kLeastLast, style.width - before);

  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text(indent, ' ');
    std::vector<std::string> pieces;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const bool is_last = i + 1 == cells.size();
      std::string cell = cells[i];
      if (is_last && columns_[i].align == Align::kLeft) {
        pieces = Pieces(cell, last);
        cell = pieces.front();
      }
      const std::string blanks(std::size_t(std::max(0, widths[i] - Columns(cell))), ' ');
      text += columns_[i].align == Align::kRight ? blanks + cell : cell + blanks;
      if (!is_last) text += std::string(std::size_t(columns_[i].gap), ' ');
    }
    for (std::size_t i = 0; i < std::max<std::size_t>(1, pieces.size()); ++i) {
      if (i > 0) text = std::string(std::size_t(before), ' ') + pieces[i];
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + '\n';
    }
  };
  std::vector<std::string> titles;
  bool any_title = false;
  for (const Heading& column : columns_) {
    titles.push_back(column.title);
    any_title = any_title || !column.title.empty();
  }
  if (any_title) {
    line(titles);
    if (style.color) {
      out.pop_back();
      out = Bold(out, style) + '\n';
    }
  }
  for (const auto& row : rows_) line(row);
  return out;
}

std::string Bar(double share, int most) {
  return std::string(std::size_t(std::lround(std::clamp(share, 0.0, 1.0) * most)), '#');
}

std::string Percent(double share) { return Percent(share, 1); }
std::string Percent(double share, int decimals) {
  return fmt::format("{:.{}f}%", 100 * share, decimals);
}

std::string Signed(std::string_view formatted, bool negative) {
  return fmt::format("{}{}", negative ? '-' : '+', formatted);
}

std::string Counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", FormatInteger(count), noun, count == 1 ? "" : "s");
}

}  // namespace millwright
