// SPDX-License-Identifier: Apache-2.0
//
// Comma-separated values (RFC 4180): a line of column names, then rows of as many cells.
//
// Quotes may hold commas and doubled quotes, not line breaks: a row is a line, so that a mistake
// can be found by its line number.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/mistakes.h"

namespace millwright {

struct CsvRow {
  int line = 0;  // from 1
  std::vector<std::string> cells;
};

struct CsvTable {
  std::vector<std::string> columns;
  std::vector<CsvRow> rows;
};

// Rows that cannot be read are noted as mistakes and left out; blank lines are skipped.
CsvTable ReadCsv(std::string_view text, Mistakes& mistakes);

}  // namespace millwright
