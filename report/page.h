// SPDX-License-Identifier: Apache-2.0
//
// A page for a browser that is one file and asks no network: head, style, library, scripts and a
// block of data.
//
// All that comes from input travels in the data block, as JSON in which no '<' is left, and the
// scripts show it as text, never as markup.  The library is D3 (https://d3js.org), inlined with
// its licence; a program that was built without it has no pages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/file_writer.h"

namespace millwright {

struct Page {
  std::string title;
  std::string data;                       // JSON: what the scripts find as page.data
  std::vector<std::string_view> scripts;  // of report/page_parts, in the order in which they run
};

bool HasPageLibrary();
// Why there is no page without it, for a message.
std::string_view NoPageLibrary();

// Does not commit `out`.
void WritePage(const Page& page, FileWriter& out);

// As the text of an element or the value of a quoted attribute; what is not UTF-8 is replaced.
std::string HtmlText(std::string_view text);

}  // namespace millwright
