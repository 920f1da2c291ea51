// SPDX-License-Identifier: Apache-2.0
#include "validate/csv.h"

#include <fmt/format.h>

namespace millwright {
namespace {

// The cells of one line; false where its quotes do not match.
bool Split(std::string_view line, std::vector<std::string>& cells) {
  cells.clear();
  std::size_t i = 0;
  while (true) {
    std::string cell;
    if (i < line.size() && line[i] == '"') {
      for (++i;; ++i) {
        if (i >= line.size()) return false;
        if (line[i] != '"') {
          cell += line[i];
        } else if (i + 1 < line.size() && line[i + 1] == '"') {
          cell += '"';
          ++i;
        } else {
          break;
        }
      }
      ++i;
      if (i < line.size() && line[i] != ',') return false;
    } else {
      const std::size_t end = std::min(line.find(',', i), line.size());
      cell = line.substr(i, end - i);
      if (cell.find('"') != std::string::npos) return false;
      i = end;
    }
    cells.push_back(std::move(cell));
    if (i >= line.size()) return true;
    ++i;  // the comma
  }
}

}  // namespace

CsvTable ReadCsv(std::string_view text, Mistakes& mistakes) {
  CsvTable table;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  int number = 0;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == line.npos) continue;
    CsvRow row{.line = number};
    const std::string where = fmt::format("line {}", number);
    if (!Split(line, row.cells)) {
      mistakes.Add(where, "expected quotes around whole cells and \"\" for a quote inside one");
    } else if (table.columns.empty()) {
      table.columns = std::move(row.cells);
    } else if (row.cells.size() != table.columns.size()) {
      mistakes.Add(where, fmt::format("expected {} cells, one for each column, got {}",
                                      table.columns.size(), row.cells.size()));
    } else {
      table.rows.push_back(std::move(row));
    }
  }
  if (table.columns.empty() && mistakes.count() == 0) {
    mistakes.Add("", "expected a line of column names, got an empty file");
  }
  return table;
}

}  // namespace millwright
