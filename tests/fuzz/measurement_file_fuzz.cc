// SPDX-License-Identifier: Apache-2.0
//
// A measurement file of any bytes either reads into rows that the models can be compared with, or
// is refused with ConfigError.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/config_io.h"
#include "validate/measurement_files.h"
#include "validate/ops.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  const std::string text(data, data + size);
  try {
    MeasurementSet set;
    ReadMeasurementFile("fuzz/ops.csv", text, set);
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
  return 0;
}
