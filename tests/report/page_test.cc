// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/page_parts.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using testing::Not;

class PageTest : public InFolder {
 protected:
  static std::string Written(const Page& page) {
    FileWriter out("page.html");
    WritePage(page, out);
    out.Commit();
    return Read("page.html");
  }
};

TEST_F(PageTest, TextOfHtml) {
  EXPECT_EQ(HtmlText("a <b> & \"c\" 'd'"), "a &lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  EXPECT_EQ(HtmlText("caf\xC3\xA9"), "caf\xC3\xA9");
  // A lone byte of a longer character becomes U+FFFD.
  EXPECT_EQ(HtmlText("a\xC3<"), "a\xEF\xBF\xBD&lt;");
}

TEST_F(PageTest, NothingInTheDataEndsItsBlock) {
  const std::string page = Written({.title = "</title><script>alert(1)</script>",
                                    .data = R"x({"name": "</script><!--<script>alert(1)"})x"});
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\">\n"));
  const std::string head = page.substr(0, page.find("<!-- D3"));  // the rest is the library
  EXPECT_THAT(head,
              HasSubstr("<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>"));
  EXPECT_THAT(head, HasSubstr("id=\"data\">{\"name\": "
                              "\"\\u003c/script>\\u003c!--\\u003cscript>alert(1)\"}</script>\n"));
  EXPECT_THAT(head, Not(HasSubstr("<script>alert")));
}

TEST_F(PageTest, HoldsAllItNeeds) {
  if (!HasPageLibrary()) GTEST_SKIP() << "built without D3";
  const std::string page = Written({.title = "t", .data = "{}", .scripts = {"own();\n"}});
  const auto holds = [&](std::string_view text) { return page.find(text) != page.npos; };
  EXPECT_TRUE(holds(PageLibrary()));
  EXPECT_TRUE(holds(PageScript()));
  EXPECT_TRUE(holds(PageStyle()));
  EXPECT_TRUE(holds("<script>\nown();\n</script>\n</body>"));
  EXPECT_TRUE(holds("Mike Bostock"));
  EXPECT_TRUE(holds("Redistribution and use in source and binary forms"));
  // Nothing to fetch.
  EXPECT_FALSE(holds("<script src"));
  EXPECT_FALSE(holds("stylesheet"));
  EXPECT_FALSE(holds("@import"));
  EXPECT_TRUE(holds("default-src 'none'"));
}

// What would end the element that a text stands in.
TEST_F(PageTest, PartsStayInTheirElements) {
  for (const std::string_view part :
       {PageLibrary(), PageScript(), TimelineScript(), ChartsScript(), StepScript()}) {
    EXPECT_EQ(part.find("</script"), part.npos);
    EXPECT_EQ(part.find("<!--"), part.npos);
  }
  EXPECT_EQ(PageStyle().find("</style"), PageStyle().npos);
  EXPECT_EQ(PageLibraryLicence().find("-->"), PageLibraryLicence().npos);
}

}  // namespace
}  // namespace millwright
