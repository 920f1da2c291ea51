// SPDX-License-Identifier: Apache-2.0
//
// Text pasted as the output of nccl-tests either reads into rows that the models can be compared
// with, or is refused with ConfigError.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/check_measurements.h"
#include "validate/nccl_tests.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  millwright::CheckMeasurements([&](millwright::MeasurementSet& set) {
    set.files.push_back("fuzz/nccl.txt");
    millwright::ReadNcclTests("fuzz/nccl.txt", text, set);
  });
  return 0;
}
