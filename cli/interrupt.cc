// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <algorithm>
#include <ctime>
#include <initializer_list>

namespace millwright {

Interrupts::Interrupts() {
  sigemptyset(&held_);
  for (int signal : {SIGINT, SIGTERM}) sigaddset(&held_, signal);
  pthread_sigmask(SIG_BLOCK, &held_, &before_);
}

Interrupts::~Interrupts() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int Interrupts::Take() const {
  constexpr timespec kNow{};
  return std::max(0, sigtimedwait(&held_, nullptr, &kNow));
}

}  // namespace millwright
