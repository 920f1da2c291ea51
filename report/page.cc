// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <nlohmann/json.hpp>

#include "report/page_parts.h"

namespace millwright {
namespace {

// What is not UTF-8 replaced by U+FFFD, as the JSON writer does it.
std::string Utf8(std::string_view text) {
  using Json = nlohmann::json;
  const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(quoted).get<std::string>();
}

void WriteScript(std::string_view script, FileWriter& out) {
  out.Write("<script>\n");
  out.Write(script);
  out.Write("</script>\n");
}

}  // namespace

bool HasPageLibrary() { return !PageLibrary().empty(); }

std::string_view NoPageLibrary() {
  return "this program was built without D3, which draws pages; install it (Debian: node-d3), "
         "configure and build again";
}

std::string HtmlText(std::string_view text) {
  std::string html;
  for (const char c : Utf8(text)) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

void WritePage(const Page& page, FileWriter& out) {
  out.Write(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      // The browser is told, too, that nothing is to be fetched.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>");
  out.Write(HtmlText(page.title));
  out.Write("</title>\n<style>\n");
  out.Write(PageStyle());
  out.Write(
      "</style>\n</head>\n<body>\n<noscript>This page is drawn by its own scripts, which this "
      "browser does not run.</noscript>\n<main></main>\n<script type=\"application/json\" "
      "id=\"data\">");
  // Neither "</script" nor "<!--" can stand in the block; a '<' in JSON is always inside a string.
  for (std::size_t begin = 0; begin < page.data.size();) {
    const std::size_t end = std::min(page.data.find('<', begin), page.data.size());
    out.Write(std::string_view(page.data).substr(begin, end - begin));
    if (end < page.data.size()) out.Write("\\u003c");
    begin = end + 1;
  }
  out.Write("</script>\n<!-- D3, drawn with here, is under this licence:\n");
  out.Write(PageLibraryLicence());
  out.Write("-->\n");
  WriteScript(PageLibrary(), out);
  WriteScript(PageScript(), out);
  for (const std::string_view script : page.scripts) WriteScript(script, out);
  out.Write("</body>\n</html>\n");
}

}  // namespace millwright
