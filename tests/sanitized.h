// SPDX-License-Identifier: Apache-2.0
//
// Whether a sanitizer watches, under which a search takes twenty times as long: tests that compare
// many searches then do a part of them, which is the same code.
#pragma once

namespace millwright {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace millwright
