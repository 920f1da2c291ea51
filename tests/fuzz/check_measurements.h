// SPDX-License-Identifier: Apache-2.0
//
// What every reader of measurements promises: rows that the models can be compared with, or a
// ConfigError.
#pragma once

#include <cmath>
#include <cstdlib>
#include <string_view>

#include "core/config_io.h"
#include "validate/ops.h"

namespace millwright {

// read(set) puts rows into it.
template <class Read>
void CheckMeasurements(Read read) {
  try {
    MeasurementSet set;
    read(set);
    for (const Measurement& row : set.rows) {
      if (!(row.time.value > 0) || !std::isfinite(row.time.value)) std::abort();
    }
    const OpsValidation validation = ValidateOps(set, PredictOperations(set));
    for (const OpsTable& table : validation.tables) {
      if (table.errors.n < 1 || table.errors.median_ape > table.errors.p90_ape) std::abort();
    }
  } catch (const ConfigError& e) {
    // A message is lines of printable text of a bearable length.
    if (std::string_view(e.what()).size() > 200'000) std::abort();
  }
}

}  // namespace millwright
