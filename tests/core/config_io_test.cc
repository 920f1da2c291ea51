// SPDX-License-Identifier: Apache-2.0
#include "core/config_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

namespace fs = std::filesystem;

enum class Colour { kRed, kGreen, kBlue };
constexpr EnumName<Colour> kColourNames[] = {
    {Colour::kRed, "red"}, {Colour::kGreen, "green"}, {Colour::kBlue, "blue"}};

struct Wheel {
  int spokes = 32;
  BytesPerSecond speed = 50_GBps;
  bool operator==(const Wheel&) const = default;
};

struct Cart {
  std::int64_t length = 4;
  int width = 2;
  double weight = 1.5;
  bool open = false;
  std::string owner = "nobody";
  std::vector<std::string> cargo;
  Bytes room = 80_GiB;
  Seconds delay = 5_us;
  Colour colour = Colour::kRed;
  std::vector<Colour> stripes;
  Wheel spare;
  bool has_trailer = false;
  Wheel trailer;
  std::vector<Wheel> wheels;
  bool operator==(const Cart&) const = default;
};

void Fields(ConfigIo& io, Wheel& w) {
  io.Int("spokes", w.spokes, {.min = 1, .max = 100}, "spokes of the wheel");
  io.Quantity("speed", w.speed, kPositive, "how fast");
  if (w.spokes == 13) io.Problem("spokes", "13 brings bad luck");
}

void Fields(ConfigIo& io, Cart& c) {
  io.Int("length", c.length, {.min = 1, .max = 1000}, "length in metres");
  io.Int("width", c.width, {.min = 0}, "width in metres");
  io.Number("weight", c.weight, kPositive, "weight in tonnes");
  io.Bool("open", c.open, "no roof");
  io.Text("owner", c.owner, "whose");
  io.Texts("cargo", c.cargo, "what is on it");
  io.Quantity("room", c.room, kNotNegative, "what it holds");
  io.Quantity("delay", c.delay, {}, "how late");
  io.Enum<Colour>("colour", c.colour, kColourNames, "its paint");
  io.Enums<Colour>("stripes", c.stripes, kColourNames, "more paint");
  io.Object("spare", "the spare wheel", [&] { Fields(io, c.spare); });
  io.OptionalObject("trailer", c.has_trailer, "one more wheel", [&] { Fields(io, c.trailer); });
  io.Array<Wheel>("wheels", c.wheels, "the wheels", [&](Wheel& w) { Fields(io, w); });
}

Cart Read(std::string_view text) {
  Cart cart;
  ReadConfig("cart.json", text, [&](ConfigIo& io) { Fields(io, cart); });
  return cart;
}

// What reading `text` complains of; empty where it does not.
std::string Complaint(std::string_view text) {
  try {
    Read(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(ReadConfig, FillsInWhatIsThereAndLeavesTheRest) {
  const Cart cart =
      Read(R"({"length": 7, "weight": 2, "colour": "blue", "stripes": ["red", "green"],
      "cargo": ["hay", "\u00e9"], "room": "1.5 GiB", "spare": {"spokes": 3},
      "trailer": {}, "wheels": [{"spokes": 4}, {"speed": "8 Gb/s"}]})");
  Cart expected;
  expected.length = 7;
  expected.weight = 2;
  expected.colour = Colour::kBlue;
  expected.stripes = {Colour::kRed, Colour::kGreen};
  expected.cargo = {"hay", "é"};
  expected.room = 1.5_GiB;
  expected.spare.spokes = 3;
  expected.has_trailer = true;
  expected.wheels = {{.spokes = 4}, {.speed = 1_GBps}};
  EXPECT_EQ(cart, expected);
}

TEST(ReadConfig, SaysWhatIsAcceptedAndWhatItGot) {
  const struct {
    const char* text;
    const char* complaint;
  } kCases[] = {
      // Wrong type.
      {R"({"length": "7"})", "at /length: expected an integer from 1 to 1000, got \"7\""},
      {R"({"length": null})", "at /length: expected an integer from 1 to 1000, got null"},
      {R"({"length": [1, {"a": 2}]})",
       "at /length: expected an integer from 1 to 1000, got [1, {\"a\": 2}]"},
      {R"({"weight": true})", "at /weight: expected a number above 0, got true"},
      {R"({"open": 1})", "at /open: expected true or false, got 1"},
      {R"({"owner": 1})", "at /owner: expected a text, got 1"},
      {R"({"cargo": "hay"})", "at /cargo: expected a list of texts, got \"hay\""},
      {R"({"cargo": ["hay", 5]})", "at /cargo/1: expected a text, got 5"},
      {R"({"spare": 3})", "at /spare: expected an object, got 3"},
      {R"({"trailer": []})", "at /trailer: expected an object, got []"},
      {R"({"wheels": {}})", "at /wheels: expected a list of objects, got {}"},
      {R"({"wheels": [{}, 7]})", "at /wheels/1: expected an object, got 7"},
      // Out of range.
      {R"({"length": -1})", "at /length: expected an integer from 1 to 1000, got -1"},
      {R"({"length": 0})", "at /length: expected an integer from 1 to 1000, got 0"},
      {R"({"length": 1001})", "at /length: expected an integer from 1 to 1000, got 1001"},
      {R"({"width": 5000000000})",
       "at /width: expected an integer from 0 to 2147483647, got 5000000000"},
      {R"({"weight": 0})", "at /weight: expected a number above 0, got 0"},
      {R"({"weight": -2.5})", "at /weight: expected a number above 0, got -2.5"},
      {R"({"room": "-1 B"})", "at /room: expected a quantity of at least 0 B, got \"-1 B\""},
      {R"({"spare": {"speed": "0 GB/s"}})",
       "at /spare/speed: expected a quantity above 0 B/s, got \"0 GB/s\""},
      // Not an integer, or not a number that can be held.
      {R"({"length": 1.9})", "at /length: expected an integer from 1 to 1000, got 1.9"},
      {R"({"length": 8.0})",
       "at /length: expected an integer from 1 to 1000, got 8.0 (write it without a point or an "
       "exponent)"},
      {R"({"length": 1e3})",
       "at /length: expected an integer from 1 to 1000, got 1e3 (write it without a point or an "
       "exponent)"},
      {R"({"length": 9223372036854775808})",
       "at /length: expected an integer from 1 to 1000, got 9223372036854775808 (beyond 64 bits)"},
      {R"({"length": -9223372036854775809})",
       "at /length: expected an integer from 1 to 1000, got -9223372036854775809 (beyond 64 bits)"},
      {R"({"length": 9223372036854775807})",
       "at /length: expected an integer from 1 to 1000, got 9223372036854775807"},
      {R"({"weight": 1e400})",
       "at /weight: expected a number above 0, got 1e400 (beyond the range of a double)"},
      {R"({"weight": -1e400})",
       "at /weight: expected a number above 0, got -1e400 (beyond the range of a double)"},
      {R"({"length": 1e400})",
       "at /length: expected an integer from 1 to 1000, got 1e400 (beyond the range of a double)"},
      {R"({"weight": NaN})", "at /weight: expected a number above 0, got NaN"},
      {R"({"weight": Infinity})", "at /weight: expected a number above 0, got Infinity"},
      {R"({"weight":-Infinity})", "at /weight: expected a number above 0, got -Infinity"},
      {R"({"owner": NaN})", "at /owner: expected a text, got NaN"},
      // Units.
      {R"({"room": 400})",
       "at /room: expected a number and a unit, such as \"80 GiB\" (units: TiB, TB, GiB, GB, MiB, "
       "MB, KiB, kB, B), got 400"},
      {R"({"delay": "5"})",
       "at /delay: expected a number and a unit, such as \"5 us\" (units: s, ms, us, ns), got "
       "\"5\""},
      {R"({"spare": {"speed": "400 Gb"}})",
       "at /spare/speed: expected a number and a unit, such as \"400 Gb/s\" (units: TB/s, Tb/s, "
       "GB/s, Gb/s, MB/s, Mb/s, kB/s, B/s), got \"400 Gb\""},
      // Names.
      {R"({"colour": "gren"})",
       "at /colour: expected one of \"red\", \"green\", \"blue\", got \"gren\"; did you mean "
       "\"green\"?"},
      {R"({"colour": "transparent"})",
       "at /colour: expected one of \"red\", \"green\", \"blue\", got \"transparent\""},
      {R"({"colour": 2})", "at /colour: expected one of \"red\", \"green\", \"blue\", got 2"},
      {R"({"stripes": "red"})",
       "at /stripes: expected a list of names from \"red\", \"green\", \"blue\", got \"red\""},
      {R"({"stripes": ["red", "bleu"]})",
       "at /stripes/1: expected one of \"red\", \"green\", \"blue\", got \"bleu\"; did you mean "
       "\"blue\"?"},
      {R"({"stripes": ["red", "red"]})",
       "at /stripes/1: expected each name at most once, got \"red\" again"},
      // Keys.
      {R"({"spare": {"spoke": 3}})",
       "at /spare/spoke: unknown field; did you mean \"spokes\"? accepted fields: spokes, speed"},
      {R"({"spare": {"zebra": 3}})",
       "at /spare/zebra: unknown field; accepted fields: spokes, speed"},
      {R"({"spare": {"a/b~c": 3}})",
       "at /spare/a~1b~0c: unknown field; accepted fields: spokes, speed"},
      {R"({"spare": {"spokes": 3, "spokes": 4}})", "at /spare/spokes: duplicate field"},
      {R"({"spare": {"spokes": 13}})", "at /spare/spokes: 13 brings bad luck"},
      // The document itself.
      {"[1, 2]", "expected an object, got [1, 2]"},
      {"null", "expected an object, got null"},
      {"NaN", "expected an object, got NaN"},
  };
  for (const auto& c : kCases)
    EXPECT_EQ(Complaint(c.text), std::string("cart.json: ") + c.complaint) << c.text;
}

TEST(ReadConfig, SyntaxErrorsNameLineAndColumn) {
  const struct {
    const char* text;
    const char* complaint;
  } kCases[] = {
      {"hello",
       "line 1, column 1: not valid JSON: while parsing value - invalid literal; last "
       "read: 'h'"},
      {"{\n  \"length\" 7}",
       "line 2, column 12: not valid JSON: while parsing object separator - unexpected number "
       "literal; expected ':'"},
      {"{\"length\": 7} x",
       "line 1, column 15: not valid JSON: while parsing value - invalid literal; last read: '7} "
       "x'; expected end of input"},
      {"{\"length\": 7} {}",
       "line 1, column 15: not valid JSON: while parsing value - unexpected '{'; expected end of "
       "input"},
      {"{\"length\": 7",
       "line 1, column 13: not valid JSON: while parsing object - unexpected end of input; "
       "expected '}'"},
      {"{\"length\": 7,}",
       "line 1, column 14: not valid JSON: while parsing object key - unexpected '}'; expected "
       "string literal"},
      {"{\"length\": // seven\n 7}",
       "line 1, column 12: not valid JSON: while parsing value - invalid literal; last read: "
       "'\"length\": /'"},
      {"{\"length\": 07}",
       "line 1, column 13: not valid JSON: while parsing object - unexpected number literal; "
       "expected '}'"},
      {"{\"length\": -NaN}",
       "line 1, column 13: not valid JSON: while parsing value - invalid number; expected digit "
       "after '-'; last read: '-N'"},
      {"{\"owner\": \"a\xff\"}",
       "line 1, column 13: not valid JSON: while parsing value - invalid string: ill-formed UTF-8 "
       "byte; last read: '\"a\\xff'"},
      {"{\"owner\": \"a\nb\"}",
       "line 1, column 13: not valid JSON: while parsing value - invalid string: control character "
       "U+000A (LF) must be escaped to \\u000A or \\n; last read: '\"a<U+000A>'"},
      {" \n ",
       "line 2, column 2: not valid JSON: while parsing value - unexpected end of input; "
       "expected '[', '{', or a literal"},
  };
  for (const auto& c : kCases)
    EXPECT_EQ(Complaint(c.text), std::string("cart.json: ") + c.complaint) << c.text;
  EXPECT_EQ(Complaint(std::string_view("{\"length\": 7}\0garbage", 21)),
            "cart.json: line 1, column 14: not valid JSON: a NUL byte");
  EXPECT_EQ(Complaint("{NaN: 1}"), "cart.json: not valid JSON: NaN is no key");
}

TEST(ReadConfig, TheThreeWordsOfPythonAreJudgedByTheFieldWhereverStringsAre) {
  // Strings before and after, with escaped quotation marks, must not move the words.
  EXPECT_EQ(Complaint(R"({"owner": "NaN \" Infinity", "weight": NaN, "cargo": ["\\", "1e400"]})"),
            "cart.json: at /weight: expected a number above 0, got NaN");
}

TEST(ReadConfig, ReportsEveryMistakeAtOnce) {
  EXPECT_EQ(Complaint(R"({"length": 0, "colour": "pink", "wheels": [{"spokes": 0}, {"sped": 1}],
                          "lenght": 4})"),
            "cart.json: at /length: expected an integer from 1 to 1000, got 0\n"
            "cart.json: at /colour: expected one of \"red\", \"green\", \"blue\", got \"pink\"\n"
            "cart.json: at /wheels/0/spokes: expected an integer from 1 to 100, got 0\n"
            "cart.json: at /wheels/1/sped: unknown field; did you mean \"speed\"? accepted fields: "
            "spokes, speed\n"
            "cart.json: at /lenght: unknown field; did you mean \"length\"? accepted fields: "
            "length, width, weight, open, owner, cargo, room, delay, colour, stripes, spare, "
            "trailer, wheels");
}

TEST(ReadConfig, OnlyTheFirstHundredMistakesAreShown) {
  std::string text = "{\"spare\": {";
  for (int i = 0; i < 250; ++i) text += (i ? ", \"k" : "\"k") + std::to_string(i) + "\": 1";
  const std::string complaint = Complaint(text + "}}");
  EXPECT_EQ(std::count(complaint.begin(), complaint.end(), '\n'), 100);
  EXPECT_EQ(complaint.substr(complaint.rfind('\n') + 1), "cart.json: and 150 more mistakes");
}

TEST(ReadConfig, RequiredFieldsAreMissed) {
  int a = 0;
  double b = 0;
  try {
    ReadConfig("f.json", "{}", [&](ConfigIo& io) {
      io.Int("a", a, {.min = 1, .max = 9}, "", Presence::kRequired);
      io.Number("b", b, {}, "", Presence::kRequired);
      io.Object("c", "", [&] { io.Int("d", a, {}, "", Presence::kRequired); });  // absent: fine
      io.Object(
          "e", "", [] {}, Presence::kRequired);
    });
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(),
                 "f.json: at /a: expected an integer from 1 to 9, got nothing (this field is "
                 "required)\n"
                 "f.json: at /b: expected a number, got nothing (this field is required)\n"
                 "f.json: at /e: expected an object, got nothing (this field is required)");
  }
}

TEST(ReadConfig, FieldsAreComparedOnlyWhereEachIsSound) {
  int a = 0;
  const auto read = [&](std::string_view text) -> std::string {
    try {
      ReadConfig("f.json", text, [&](ConfigIo& io) {
        io.Int("a", a, {.max = 9}, "");
        io.Problem("a", "first");
        io.Problem("a", "second");
      });
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(read(R"({"a": 1})"), "f.json: at /a: first\nf.json: at /a: second");
  EXPECT_EQ(read(R"({"a": 10})"), "f.json: at /a: expected an integer from 0 to 9, got 10");
}

TEST(ReadConfig, DeepNestingIsAMistakeNotACrash) {
  const std::string deep(1'000'000, '[');
  std::string pointer = "/owner";
  // The object is level 1, so the 64th bracket after it is one too many: 63 indices.
  for (int i = 0; i < 63; ++i) pointer += "/0";
  EXPECT_EQ(Complaint("{\"owner\": " + deep),
            "cart.json: at " + pointer + ": nested more than 64 levels deep");
  const std::string just(63, '['), shut(63, ']');
  EXPECT_EQ(Complaint("{\"owner\": " + just + shut + "}"),
            "cart.json: at /owner: expected a text, got "
            "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[...");
}

TEST(ReadConfig, LongAndBinaryValuesAreShortened) {
  EXPECT_EQ(Complaint("{\"length\": \"" + std::string(1000, 'x') + "\"}"),
            "cart.json: at /length: expected an integer from 1 to 1000, got \"" +
                std::string(56, 'x') + "...");  // 1 + 56 + 3 = 60
  EXPECT_EQ(Complaint(R"({"length": "a\u0007\u001b[31m\u007f"})"),
            "cart.json: at /length: expected an integer from 1 to 1000, got "
            "\"a\\u0007\\u001b[31m\\u007f\"");
  EXPECT_EQ(Complaint("{\"length\": " + std::string(400, '9') + "}"),
            "cart.json: at /length: expected an integer from 1 to 1000, got " +
                std::string(57, '9') + "... (beyond the range of a double)");
  EXPECT_EQ(Complaint("{\"" + std::string(500, 'k') + "\": 1}").substr(0, 80),
            "cart.json: at /" + std::string(57, 'k') + "...: unk");
}

TEST(ReadConfig, AMillionValuesAtMost) {
  std::string text = "{\"cargo\": [0";
  for (int i = 0; i < 1'000'000; ++i) text += ",0";
  EXPECT_EQ(Complaint(text + "]}"), "cart.json: holds more than 1000000 values");
}

TEST(WriteConfig, IsPrettyAndStable) {
  Cart cart;
  cart.cargo = {"hay", "\"\\é"};
  cart.stripes = {Colour::kBlue, Colour::kRed};
  cart.wheels = {{}, {.spokes = 3}};
  const auto write = [&] { return WriteConfig([&](ConfigIo& io) { Fields(io, cart); }); };
  EXPECT_EQ(write(), R"({
  "length": 4,
  "width": 2,
  "weight": 1.5,
  "open": false,
  "owner": "nobody",
  "cargo": ["hay", "\"\\é"],
  "room": "80 GiB",
  "delay": "5 us",
  "colour": "red",
  "stripes": ["blue", "red"],
  "spare": {
    "spokes": 32,
    "speed": "50 GB/s"
  },
  "wheels": [
    {
      "spokes": 32,
      "speed": "50 GB/s"
    },
    {
      "spokes": 3,
      "speed": "50 GB/s"
    }
  ]
}
)");
  EXPECT_EQ(Read(write()), cart);
}

TEST(WriteConfig, RefusesWhatCannotBeReadBack) {
  double value = std::numeric_limits<double>::infinity();
  EXPECT_THROW(WriteConfig([&](ConfigIo& io) { io.Number("a", value, {}, ""); }), InternalError);
}

TEST(WriteConfig, RandomValuesReadBackEqual) {
  std::mt19937_64 random(7);
  const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 2000; ++round) {
    Cart cart;
    cart.length = 1 + below(1000);
    cart.width = below(std::numeric_limits<int>::max());
    cart.weight = std::ldexp(static_cast<double>(1 + (random() >> 12)), below(400) - 200);
    cart.open = below(2) == 1;
    cart.owner.clear();
    for (int i = below(20); i > 0; --i) cart.owner += static_cast<char>(' ' + below('~' - ' ' + 1));
    for (int i = below(4); i > 0; --i) cart.cargo.push_back(std::string(below(5), '"'));
    cart.room = Bytes(std::ldexp(static_cast<double>(random() >> 12), below(60) - 40));
    cart.delay = Seconds(-std::ldexp(static_cast<double>(random() >> 12), below(100) - 90));
    cart.colour = static_cast<Colour>(below(3));
    if (below(2) == 1) cart.stripes = {Colour::kGreen, Colour::kRed};
    cart.has_trailer = below(2) == 1;
    if (cart.has_trailer) cart.trailer.spokes = 1 + below(12);
    for (int i = below(4); i > 0; --i) cart.wheels.push_back({.spokes = 14 + below(80)});
    const std::string text = WriteConfig([&](ConfigIo& io) { Fields(io, cart); });
    ASSERT_EQ(Read(text), cart) << text;
  }
}

TEST(DescribeConfig, ListsEveryFieldWithItsDefault) {
  Cart cart;
  const auto docs = DescribeConfig([&](ConfigIo& io) { Fields(io, cart); });
  std::string text;
  for (const FieldDoc& d : docs)
    text += d.pointer + " | " + d.type + " | " + d.accepted + " | " + d.default_value + " | " +
            d.meaning + "\n";
  EXPECT_EQ(text,
            R"(/length | integer | 1 to 1000 | 4 | length in metres
/width | integer | 0 to 2147483647 | 2 | width in metres
/weight | number | above 0 | 1.5 | weight in tonnes
/open | boolean | true, false | false | no roof
/owner | text | any text | "nobody" | whose
/cargo | list of texts | any texts | [] | what is on it
/room | quantity (TiB, TB, GiB, GB, MiB, MB, KiB, kB, B) | of at least 0 B | 80 GiB | what it holds
/delay | quantity (s, ms, us, ns) | any finite quantity | 5 us | how late
/colour | name | "red", "green", "blue" | "red" | its paint
/stripes | list of names | "red", "green", "blue" | [] | more paint
/spare | object | the fields below | the defaults below | the spare wheel
/spare/spokes | integer | 1 to 100 | 32 | spokes of the wheel
/spare/speed | quantity (TB/s, Tb/s, GB/s, Gb/s, MB/s, Mb/s, kB/s, B/s) | above 0 B/s | 50 GB/s | how fast
/trailer | object | the fields below, or absent | absent | one more wheel
/trailer/spokes | integer | 1 to 100 | 32 | spokes of the wheel
/trailer/speed | quantity (TB/s, Tb/s, GB/s, Gb/s, MB/s, Mb/s, kB/s, B/s) | above 0 B/s | 50 GB/s | how fast
/wheels | list of objects | the fields below, in each | 0 items | the wheels
/wheels/*/spokes | integer | 1 to 100 | 32 | spokes of the wheel
/wheels/*/speed | quantity (TB/s, Tb/s, GB/s, Gb/s, MB/s, Mb/s, kB/s, B/s) | above 0 B/s | 50 GB/s | how fast
)");
}

TEST(DescribeConfig, ADefaultOutsideTheRangeIsNone) {
  int unset = 0;
  const auto docs =
      DescribeConfig([&](ConfigIo& io) { io.Int("a", unset, {.min = 1, .max = 9}, ""); });
  EXPECT_EQ(docs[0].default_value, "none (to be given)");
}

TEST(ConfigIo, AKeyListedTwiceIsOurBug) {
  int a = 0;
  const auto twice = [&](ConfigIo& io) {
    io.Int("a", a, {}, "");
    io.Int("a", a, {}, "");
  };
  EXPECT_THROW(ReadConfig("f", "{}", twice), InternalError);
  EXPECT_THROW(WriteConfig(twice), InternalError);
}

class TextFile : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) / ("config_io_test_" + std::to_string(::getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }
  static std::string ReadComplaint(const std::string& path) {
    try {
      ReadTextFile(path);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  }
  fs::path dir_;
};

TEST_F(TextFile, EachThingThatIsNoConfigHasItsMessage) {
  EXPECT_EQ(ReadComplaint(Path("missing.json")), Path("missing.json") + ": no such file");
  EXPECT_EQ(ReadComplaint(Path("no/dir/x.json")), Path("no/dir/x.json") + ": no such file");
  EXPECT_EQ(ReadComplaint(dir_.string()), dir_.string() + ": is a directory, not a file");
  std::ofstream(Path("empty.json")).close();
  EXPECT_EQ(ReadComplaint(Path("empty.json")), Path("empty.json") + ": is empty");
  std::ofstream(Path("long.json")).close();
  fs::resize_file(Path("long.json"), 100'000'000);  // sparse
  EXPECT_EQ(ReadComplaint(Path("long.json")),
            Path("long.json") + ": is longer than 16 MiB, too long for a config");
  std::ofstream(Path("closed.json")) << "{}";
  ::chmod(Path("closed.json").c_str(), 0);
  if (::geteuid() != 0) {  // root may read anything
    EXPECT_EQ(ReadComplaint(Path("closed.json")),
              Path("closed.json") + ": cannot be opened: Permission denied");
  }
  EXPECT_EQ(ReadComplaint("a\nb\x1b[0m"), "a\\u000ab\\u001b[0m: no such file");
}

TEST_F(TextFile, SixteenMebibytesAreRead) {
  std::ofstream(Path("most.json")).close();
  fs::resize_file(Path("most.json"), 16 << 20);
  EXPECT_EQ(ReadTextFile(Path("most.json")).size(), std::size_t{16} << 20);
}

TEST_F(TextFile, WritesWholeOrNotAtAll) {
  WriteTextFile(Path("a.json"), "one");
  EXPECT_EQ(ReadTextFile(Path("a.json")), "one");
  WriteTextFile(Path("a.json"), "two");
  EXPECT_EQ(ReadTextFile(Path("a.json")), "two");
  fs::create_symlink(Path("a.json"), Path("link.json"));
  WriteTextFile(Path("link.json"), "three");
  EXPECT_TRUE(fs::is_symlink(Path("link.json")));
  EXPECT_EQ(ReadTextFile(Path("a.json")), "three");
  WriteTextFile("/dev/null", "gone");
  EXPECT_FALSE(fs::is_regular_file("/dev/null"));
  int files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir_)) ++files;
  EXPECT_EQ(files, 2);  // no temporary file is left

  const auto complaint = [](const std::string& path) -> std::string {
    try {
      WriteTextFile(path, "x");
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(complaint(Path("no/dir.json")),
            Path("no/dir.json") + ": cannot be written: No such file or directory");
  EXPECT_EQ(complaint(dir_.string()), dir_.string() + ": is a directory, not a file");
  EXPECT_EQ(complaint("/dev/full"), "/dev/full: cannot be written: No space left on device");
}

TEST_F(TextFile, WhatCannotBeWrittenIsFoundBefore) {
  const auto complaint = [](const std::string& path) -> std::string {
    try {
      CheckWritable(path);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(complaint(Path("new.json")), "");
  EXPECT_FALSE(fs::exists(Path("new.json")));
  WriteTextFile(Path("old.json"), "one");
  EXPECT_EQ(complaint(Path("old.json")), "");
  EXPECT_EQ(ReadTextFile(Path("old.json")), "one");
  EXPECT_EQ(complaint("/dev/full"), "");  // only writing tells
  EXPECT_EQ(complaint(dir_.string()), dir_.string() + ": is a directory, not a file");
  EXPECT_EQ(complaint(Path("no/dir.json")),
            Path("no/dir.json") + ": there is no directory " + Path("no"));
  const std::string long_name(300, 'x');  // NAME_MAX is 255
  EXPECT_THAT(complaint(Path(long_name)),
              testing::EndsWith(": cannot be written: File name too long"));
}

TEST(NearestName, SuggestsOnlyWhatIsNear) {
  const std::vector<std::string_view> names = {"tensor_parallel", "pipeline_parallel", "zero",
                                               "global_batch_size"};
  EXPECT_EQ(NearestName("tensr_parallel", names), "tensor_parallel");
  EXPECT_EQ(NearestName("TENSOR_PARALLEL", names), "tensor_parallel");
  EXPECT_EQ(NearestName("pipeline_paralell", names), "pipeline_parallel");
  EXPECT_EQ(NearestName("batch_size", names), "global_batch_size");  // part of it
  EXPECT_EQ(NearestName("ezro", names), "zero");                     // two letters swapped
  EXPECT_EQ(NearestName("colour", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName(std::string(100'000, 'z'), names), "");
  EXPECT_EQ(NearestName("zero", {}), "");
}

TEST(ReadConfig, TextsAreLines) {
  EXPECT_EQ(Complaint(R"({"owner": "a\u001b[31m", "cargo": ["hay", "a\nb"]})"),
            "cart.json: at /owner: expected a text without control characters, got "
            "\"a\\u001b[31m\"\n"
            "cart.json: at /cargo/1: expected a text without control characters, got \"a\\nb\"");
}

TEST(ReadConfig, ListsOfIntegers) {
  std::vector<int> layers = {1, 2};
  const auto fields = [&](ConfigIo& io) { io.Ints("layers", layers, {0, 9}, "of each stage"); };
  EXPECT_EQ(WriteConfig(fields), "{\n  \"layers\": [1, 2]\n}\n");
  ReadConfig("plan.json", R"({"layers": [3, 0, 9]})", fields);
  EXPECT_EQ(layers, (std::vector{3, 0, 9}));
  ReadConfig("plan.json", R"({"layers": []})", fields);
  EXPECT_TRUE(layers.empty());
  const std::vector<FieldDoc> docs = DescribeConfig(fields);
  ASSERT_EQ(docs.size(), 1U);
  EXPECT_EQ(docs[0].type, "list of integers");
  EXPECT_EQ(docs[0].accepted, "0 to 9 each");
  EXPECT_EQ(docs[0].default_value, "[]");
  const auto complaint = [&](std::string_view text) {
    try {
      ReadConfig("plan.json", text, fields);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(complaint(R"({"layers": [1, -1, 1.5, "2", 10]})"),
            "plan.json: at /layers/1: expected an integer from 0 to 9, got -1\n"
            "plan.json: at /layers/2: expected an integer from 0 to 9, got 1.5\n"
            "plan.json: at /layers/3: expected an integer from 0 to 9, got \"2\"\n"
            "plan.json: at /layers/4: expected an integer from 0 to 9, got 10");
  EXPECT_EQ(complaint(R"({"layers": 4})"),
            "plan.json: at /layers: expected a list of integers from 0 to 9, got 4");
}

TEST(ReadConfig, QuantitiesBeyondADouble) {
  EXPECT_EQ(Complaint(R"({"room": "1e400 GB"})"),
            "cart.json: at /room: expected a quantity of at least 0 B, got \"1e400 GB\" (beyond "
            "the range "
            "of a double)");
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(Printable("plain é 漢 😀", 60), "plain é 漢 😀");
  EXPECT_EQ(Printable("a\tb\x7f", 60), "a\\u0009b\\u007f");
  EXPECT_EQ(Printable("\xc2\x85", 60), "\\u0085");              // C1 control
  EXPECT_EQ(Printable("\xff\xc0\x80", 60), "\\xff\\xc0\\x80");  // no UTF-8; an overlong NUL
  EXPECT_EQ(Printable("\xed\xa0\x80", 60), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(Printable("\xe6\xbc", 60), "\\xe6\\xbc");           // cut short
  EXPECT_EQ(Printable("0123456789", 10), "0123456789");
  EXPECT_EQ(Printable("0123456789a", 10), "0123456...");
  EXPECT_EQ(Printable("éééééé", 10), "ééé...");  // not in the middle of a letter
}

}  // namespace
}  // namespace millwright
