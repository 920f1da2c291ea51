// SPDX-License-Identifier: Apache-2.0
//
// A folder that goes away with the test, and is the working directory meanwhile, so that messages
// hold short names.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace millwright {

class InFolder : public testing::Test {
 protected:
  void SetUp() override {
    before_ = std::filesystem::current_path();
    std::string folder = (std::filesystem::temp_directory_path() / "millwrightXXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    std::filesystem::current_path(folder_);
  }
  void TearDown() override {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(folder_);
  }
  static void Write(const std::string& file, const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
  }
  static std::string Read(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::ptrdiff_t Files() {
    return std::distance(std::filesystem::directory_iterator("."),
                         std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path before_, folder_;
};

}  // namespace millwright
