// SPDX-License-Identifier: Apache-2.0
//
// A large output file, written piece by piece: it appears whole or not at all.
//
// Until it is committed the file has no name (O_TMPFILE, where the file system has that, else a
// name beside it), so that a program that is interrupted or killed leaves nothing behind.  A pipe
// or a device is written directly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millwright {

class FileWriter {
 public:
  // ConfigError where the file cannot be written, here as below.
  explicit FileWriter(std::string file);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void Write(std::string_view text);
  // What was written takes up its space, so that Commit does not find the disk full.
  void Flush();
  void Commit();

  const std::string& file() const { return file_; }
  std::int64_t bytes() const { return bytes_; }  // so far

 private:
  [[noreturn]] void Fail(int error) const;

  std::string file_, target_, temporary_, buffer_;
  int descriptor_ = -1;
  bool named_ = false;  // the temporary file has its name
  std::int64_t bytes_ = 0;
};

}  // namespace millwright
