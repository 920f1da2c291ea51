// SPDX-License-Identifier: Apache-2.0
//
// What `measure` has measured, as text and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "report/text.h"
#include "runtime/measure.h"
#include "validate/measured_rows.h"

namespace millwright {

struct MeasuredOperationTime {
  MeasuredCase what;
  Timing timing;
};

struct MeasureAnswer {
  MeasuredOn on;
  std::vector<MeasuredOperationTime> measured;
  std::size_t cases = 0;  // that were to be
  std::optional<OverlapTimes> overlap{};
  bool interrupted = false;
  std::vector<std::string> files;
  Seconds seconds;  // in all
};

std::string MeasureText(const MeasureAnswer& answer, const Style& style);
std::string MeasureJson(const MeasureAnswer& answer);

}  // namespace millwright
