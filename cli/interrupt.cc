// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <ctime>
#include <initializer_list>

namespace millwright {

Interrupts::Interrupts() {
  sigemptyset(&held_);
  for (int signal : {SIGINT, SIGTERM}) sigaddset(&held_, signal);
  pthread_sigmask(SIG_BLOCK, &held_, &before_);
}

Interrupts::~Interrupts() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void Interrupts::ThrowIfAny() const {
  constexpr timespec kNow{};
  const int signal = sigtimedwait(&held_, nullptr, &kNow);
  if (signal > 0) throw Interrupted{signal};
}

}  // namespace millwright
