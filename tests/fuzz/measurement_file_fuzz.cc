// SPDX-License-Identifier: Apache-2.0
//
// A measurement file of any bytes either reads into rows that the models can be compared with, or
// is refused with ConfigError.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/check_measurements.h"
#include "validate/measurement_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  millwright::CheckMeasurements([&](millwright::MeasurementSet& set) {
    millwright::ReadMeasurementFile("fuzz/ops.csv", text, set);
  });
  return 0;
}
