// SPDX-License-Identifier: Apache-2.0
#include "report/file_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "core/config_io.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

namespace fs = std::filesystem;

using FileWriterTest = InFolder;

TEST_F(FileWriterTest, WholeOrNotAtAll) {
  {
    FileWriter out("a");
    out.Write("half");
  }
  EXPECT_EQ(Files(), 0);
  const std::string large(5'000'000, 'x');  // several buffers
  FileWriter out("a");
  out.Write(large);
  out.Write("end");
  EXPECT_EQ(out.bytes(), 5'000'003);
  EXPECT_FALSE(fs::exists("a"));
  out.Commit();
  EXPECT_EQ(Read("a"), large + "end");
  EXPECT_EQ(Files(), 1);
}

TEST_F(FileWriterTest, ReplacesAndKeepsLinks) {
  Write("a", "before");
  fs::create_symlink("a", "link");
  FileWriter out("link");
  out.Write("after");
  EXPECT_EQ(Read("a"), "before");
  out.Commit();
  EXPECT_TRUE(fs::is_symlink("link"));
  EXPECT_EQ(Read("a"), "after");
}

TEST_F(FileWriterTest, WhatCannotBeWritten) {
  const auto message = [](const std::string& file) -> std::string {
    try {
      FileWriter out(file);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(message("missing/a"), "missing/a: cannot be written: No such file or directory");
  EXPECT_EQ(message("."), ".: cannot be written: Is a directory");
  Write("a", "a file");
  EXPECT_EQ(message("a/b"), "a/b: cannot be written: Not a directory");
  // A device is written directly, and one that is full says so.
  FileWriter full("/dev/full");
  full.Write("x");
  EXPECT_THROW(full.Commit(), ConfigError);
}

}  // namespace
}  // namespace millwright
