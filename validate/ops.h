// SPDX-License-Identifier: Apache-2.0
//
// How far are the cost models off the measured operations?
//
// Every row of a measurement set is predicted and compared, and summed up by table and, in a
// table, by GPU and dtype (GPU and operation for collectives and memory-bound operators).  Beside
// each stands the floor: what the best single prediction for identical operations (their median)
// would reach, over the operations that were measured more than once; repeats of one collection
// are nearer to each other than a second machine would be, so that the floor is a low one.
// Rows without a prediction are counted with the reason; rows that are ten times off their group's
// median ratio are flagged, and count.
#pragma once

#include <string>
#include <vector>

#include "validate/measurement.h"
#include "validate/predict_operation.h"
#include "validate/runs.h"

namespace millwright {

struct ComparedRow {
  std::size_t row = 0;  // of the set
  Seconds predicted;
  double error = 0;  // predicted / measured - 1
};

struct OpsGroup {
  std::string name;  // "H100/bfloat16"
  ErrorSummary errors, floor;
  std::vector<ComparedRow> worst;  // by ratio, the worst first
};

// A table of the data, or the part of one that has a bound of its own ("gemm, m n k >= 512").
struct OpsTable {
  std::string name;
  ErrorSummary errors, floor;
  std::vector<OpsGroup> groups;
};

struct UnsupportedRows {
  std::string table, reason;
  int n = 0;
};

struct OpsValidation {
  std::vector<OpsTable> tables;
  std::vector<UnsupportedRows> unsupported;
  std::vector<FlaggedRow> flagged;  // those of the reader, then those found here
};

// Of `predictions`, one for each row of the set.
OpsValidation ValidateOps(const MeasurementSet& set,
                          const std::vector<OperationPrediction>& predictions);

}  // namespace millwright
