// SPDX-License-Identifier: Apache-2.0
//
// Runs each file of the folders and files given through a fuzz target: does what broke a reader
// once still break it?  The same inputs feed libFuzzer where a build has it; here any compiler
// does, so that each test run asks.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

void Replay(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::puts(path.c_str());
  std::fflush(stdout);  // the last name printed is that of an input that crashes
  // A copy of exactly that size, so that a sanitizer sees a read past the end.
  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  int replayed = 0;
  for (int i = 1; i < argc; ++i) {
    if (fs::is_directory(argv[i])) {
      for (const auto& entry : fs::recursive_directory_iterator(argv[i])) {
        if (!entry.is_regular_file()) continue;
        Replay(entry.path());
        ++replayed;
      }
    } else if (fs::exists(argv[i])) {
      Replay(argv[i]);
      ++replayed;
    }
  }
  if (replayed == 0) {
    std::fputs("no input to replay\n", stderr);
    return 1;
  }
  return 0;
}
