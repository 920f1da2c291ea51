// SPDX-License-Identifier: Apache-2.0
//
// Which cluster size is the answer, and what each would take and cost: a sentence and a table.
#pragma once

#include <string>

#include "planner/cluster_size.h"
#include "report/text.h"

namespace millwright {

std::string SizeSentence(const SizeAnswer& answer);
std::string SizeText(const SizeAnswer& answer, const Style& style);

}  // namespace millwright
