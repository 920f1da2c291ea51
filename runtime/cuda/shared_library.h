// SPDX-License-Identifier: Apache-2.0
//
// A library that is loaded when it is needed, so that this program also starts where it is not.  It
// stays loaded.
#pragma once

#include <dlfcn.h>

#include <string>

namespace millwright {

class SharedLibrary {
 public:
  explicit SharedLibrary(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) error_ = dlerror();
  }
  // Null, with an error, where it is not there.
  template <class Function>
  void Find(const char* name, Function*& function) {
    function = handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, name));
    if (function == nullptr && error_.empty()) error_ = std::string("has no ") + name;
  }
  const std::string& error() const { return error_; }

 private:
  void* handle_;
  std::string error_;
};

}  // namespace millwright
