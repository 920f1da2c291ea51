// SPDX-License-Identifier: Apache-2.0
//
// Findings as bytes, for another process of the same program on the same kind of machine.
#pragma once

#include <string>
#include <string_view>

#include "planner/findings.h"

namespace millwright {

std::string BytesOf(const Findings& findings);
// CHECKs that `bytes` are those of BytesOf.
Findings FindingsOf(std::string_view bytes, const TrainingConfig& training);

}  // namespace millwright
