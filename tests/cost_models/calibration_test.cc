// SPDX-License-Identifier: Apache-2.0
#include "cost_models/calibration.h"

#include <gtest/gtest.h>

namespace millwright {
namespace {

TEST(Calibration, EveryFamilyThatAGpuMayNameHasOne) {
  for (std::string_view name : CalibrationNames()) {
    GpuSpec gpu;
    gpu.calibration = name;
    EXPECT_EQ(CalibrationFor(gpu).name, name);
  }
}

}  // namespace
}  // namespace millwright
