// SPDX-License-Identifier: Apache-2.0
//
// The answer of `millwright sweep`: a row for each point, as a table, as CSV for other programs,
// and as JSON (report/json.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/contenders.h"
#include "planner/sweep_grid.h"
#include "report/text.h"

namespace millwright {

struct SweepRow {
  std::vector<std::string> at;    // the value of each axis
  std::optional<Contender> plan;  // the best one, or the job's own; it may not fit
  bool fits = false;
  std::string reason;  // why there is none, or why it does not fit; empty where it does

  double tokens_per_second_per_gpu() const;
  double mfu() const;
};

struct SweepAnswer {
  std::vector<SweepAxis> axes;
  std::vector<SweepRow> rows;
  bool own_plan = false;  // of the job, not the best one
  std::vector<std::string> warnings;
  double seconds = 0;  // wall time
  bool any_fits() const;
};

std::string SweepText(const SweepAnswer& answer, const Style& style);
// RFC 4180, with a header; seconds, GiB and shares unrounded.
std::string SweepCsv(const SweepAnswer& answer);

}  // namespace millwright
