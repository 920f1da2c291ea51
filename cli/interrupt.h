// SPDX-License-Identifier: Apache-2.0
//
// Being told to stop: SIGINT and SIGTERM are held while this exists, and asked for by who works.
//
// So that a long search ends with its exit code, 128 and the signal's number, and not in the middle
// of something.  Threads that are started meanwhile hold them too.
#pragma once

#include <signal.h>

namespace millwright {

struct Interrupted {
  int signal = 0;
};
// An exit code is this and the signal's number, as a shell says it.
inline constexpr int kSignalled = 128;

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();  // one that was not asked for acts now
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // The signal that has come, which is dealt with by this; 0: none.
  int Take() const;

 private:
  sigset_t held_{}, before_{};
};

}  // namespace millwright
