// SPDX-License-Identifier: Apache-2.0
//
// What runtime/measure has measured, as rows of the tables that `calibrate` reads.
//
// A weight's or an input's gradient is a grouped product of one group, whose table has a column for
// the pass.  The source names the machine, the repeats and their spread, and begins with the
// backend and its precision, by which curves are told apart ("millwright-cpu-fp64"); of the first
// repeats with "-burst" behind it.
#pragma once

#include <string>

#include "core/units.h"
#include "runtime/measured_case.h"
#include "runtime/stable_timing.h"
#include "validate/measurement.h"

namespace millwright {

struct MeasuredOn {
  std::string gpu;      // the preset: "local-cpu"
  std::string stack;    // "millwright-cpu-fp64"
  std::string library;  // of collectives: "millwright-mpi-fp64"
  std::string dtype;    // "float64"
  std::string machine;  // in words
  std::string topology;
  int width = 8;                  // bytes of an element
  int ranks = 1;                  // that measured at the same time
  std::string attention_by = {};  // Backend::AttentionBy
};

Measurement RowOf(const MeasuredCase& what, const Timing& timing, bool burst, const MeasuredOn& on);

}  // namespace millwright
