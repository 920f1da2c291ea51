// SPDX-License-Identifier: Apache-2.0
//
// What a user's own training steps say of the end-to-end parameters: part of a calibration file.
//
// Those that their runs moved, over the shipped ones (cost_models/end_to_end), with how far off
// the runs were before and after, and left out of the fit.
#pragma once

#include <string>
#include <vector>

#include "core/config_io.h"
#include "cost_models/fitted.h"

namespace millwright {

struct OwnEndToEnd {
  struct Parameter {
    std::string name;  // of EndToEndFields()
    Fitted value;
    bool operator==(const Parameter&) const = default;
  };
  int runs = 0;  // 0: there is none of it
  // Median absolute errors, as shares: by what is shipped, fitted, and each run by a fit that did
  // not see it (0 of fewer than three runs).
  double shipped_median_ape = 0, median_ape = 0, cv_median_ape = 0;
  std::vector<Parameter> parameters;
  bool operator==(const OwnEndToEnd&) const = default;
};
void Fields(ConfigIo& io, OwnEndToEnd& own);

}  // namespace millwright
