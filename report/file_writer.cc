// SPDX-License-Identifier: Apache-2.0
#include "report/file_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/check.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kBuffer = std::size_t{1} << 20;
constexpr mode_t kMode = 0666;  // less the umask

}  // namespace

FileWriter::FileWriter(std::string file) : file_(std::move(file)), target_(file_) {
  std::error_code error;
  if (fs::is_symlink(target_, error)) {  // a link keeps pointing where it did
    if (const fs::path real = fs::canonical(target_, error); !error) target_ = real.string();
  }
  if (fs::is_directory(target_, error)) Fail(EISDIR);
  if (fs::exists(target_, error) && !fs::is_regular_file(target_, error)) {
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) Fail(errno);
    return;
  }
  temporary_ = fmt::format("{}.{}.tmp", target_, ::getpid());
  const fs::path folder = fs::path(target_).parent_path();
  descriptor_ =
      ::open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, kMode);
  if (descriptor_ >= 0) return;
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode);
  if (descriptor_ < 0) Fail(errno);
  named_ = true;
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (named_) ::unlink(temporary_.c_str());
}

void FileWriter::Fail(int error) const {
  Mistakes one(file_);
  one.Add("", fmt::format("cannot be written: {}", std::strerror(error)));
  one.ThrowIfAny();
  MILLWRIGHT_CHECK(false);
}

void FileWriter::Flush() {
  for (std::size_t written = 0; written < buffer_.size();) {
    const ssize_t n = ::write(descriptor_, buffer_.data() + written, buffer_.size() - written);
    if (n >= 0) {
      written += std::size_t(n);
    } else if (errno != EINTR) {
      Fail(errno);
    }
  }
  buffer_.clear();
}

void FileWriter::Write(std::string_view text) {
  buffer_ += text;
  bytes_ += std::int64_t(text.size());
  if (buffer_.size() >= kBuffer) Flush();
}

void FileWriter::Commit() {
  Flush();
  if (!temporary_.empty() && !named_) {
    const std::string anonymous = fmt::format("/proc/self/fd/{}", descriptor_);
    ::unlink(temporary_.c_str());  // what an earlier program of this number left
    if (::linkat(AT_FDCWD, anonymous.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) !=
        0) {
      Fail(errno);
    }
    named_ = true;
  }
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0) Fail(errno);
  if (!named_) return;
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) Fail(errno);
  named_ = false;
}

}  // namespace millwright
