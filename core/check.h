// SPDX-License-Identifier: Apache-2.0
//
// Always-on assertion of our own invariants.  A failure is a bug in Millwright, not in the input.
#pragma once

#include <stdexcept>
#include <string>

namespace millwright {

// Exit code 3.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace millwright

#define MILLWRIGHT_CHECK(condition)                                                               \
  do {                                                                                            \
    if (!(condition))                                                                             \
      throw ::millwright::InternalError(std::string("this is a bug in Millwright: ") + __FILE__ + \
                                        ":" + std::to_string(__LINE__) + ": " #condition);        \
  } while (false)
