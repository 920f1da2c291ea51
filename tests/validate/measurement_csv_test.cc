// SPDX-License-Identifier: Apache-2.0
#include "validate/measurement_csv.h"

#include <gtest/gtest.h>

#include "runtime/measured_case.h"
#include "validate/measured_rows.h"
#include "validate/measurement_files.h"
#include "validate/source_class.h"

namespace millwright {
namespace {

const MeasuredOn kOn{.gpu = "local-cpu",
                     .stack = "millwright-cpu-fp64",
                     .library = "millwright-mpi-fp64",
                     .dtype = "float64",
                     .machine = "a \"CPU\", 2 processors",
                     .topology = "memory of one machine",
                     .width = 8,
                     .ranks = 2};
const Timing kTiming{.burst = Seconds(10e-6),
                     .sustained = Seconds(12.5e-6),
                     .spread = 0.031,
                     .repeats = 24,
                     .settled = true};

std::vector<Measurement> AllKinds() {
  const std::vector<MeasuredCase> cases{
      GemmCase{.m = 3, .n = 5, .k = 7},
      GemmCase{.m = 3, .n = 5, .k = 7, .pass = GemmPass::kInputGradient},
      GemmCase{.m = 3, .n = 5, .k = 7, .pass = GemmPass::kWeightGradient},
      AttentionCase{.sequences = 2, .tokens = 64, .head_size = 16, .heads = 8, .groups = 2},
      AttentionCase{
          .sequences = 2, .tokens = 64, .head_size = 16, .heads = 8, .groups = 2, .backward = true},
      RowsCase{
          .kernel = RowKernel::kActivation, .backward = true, .rows = 4, .cols = 6, .gated = true},
      CollectiveCase{.kind = CollectiveKind::kReduceScatter, .ranks = 2, .elements = 1000}};
  std::vector<Measurement> rows;
  for (const MeasuredCase& what : cases) {
    rows.push_back(RowOf(what, kTiming, false, kOn));
    rows.push_back(RowOf(what, kTiming, true, kOn));
  }
  return rows;
}

TEST(MeasurementCsv, OfFp8WhateverElseIsComputedIn) {
  const GemmCase bf16{.m = 16, .n = 16, .k = 16}, fp8{.m = 16, .n = 16, .k = 16, .fp8 = true};
  EXPECT_EQ(RowOf(bf16, kTiming, false, kOn).dtype, kOn.dtype);
  EXPECT_EQ(RowOf(fp8, kTiming, false, kOn).dtype, "fp8");
}

TEST(MeasurementCsv, IsReadAsItWasWritten) {
  const std::vector<Measurement> rows = AllKinds();
  for (std::size_t table = 0; table < kTableNames.size(); ++table) {
    MeasurementSet set;
    std::vector<Measurement> of_table;
    for (const Measurement& row : rows) {
      if (row.operation.index() == table) of_table.push_back(row);
    }
    if (of_table.empty()) continue;
    ReadMeasurementFile("a.csv", WriteTable(rows, table), set);
    EXPECT_TRUE(set.flagged.empty());
    ASSERT_EQ(set.rows.size(), of_table.size());
    for (std::size_t i = 0; i < of_table.size(); ++i) {
      EXPECT_EQ(set.rows[i].operation, of_table[i].operation);
      EXPECT_EQ(set.rows[i].gpu, "local-cpu");
      EXPECT_EQ(set.rows[i].source, of_table[i].source);
      EXPECT_NEAR(set.rows[i].time / of_table[i].time, 1, 1e-6);
      // The table of what is bound by memory has no column for it.
      if (kTableNames[table] != "memory_bound") {
        EXPECT_EQ(set.rows[i].dtype, "float64");
      }
    }
  }
}

TEST(MeasurementCsv, ALineHasItsQuotesAndItsRates) {
  const std::vector<Measurement> rows{
      RowOf(CollectiveCase{.kind = CollectiveKind::kAllReduce, .ranks = 4, .elements = 1000},
            kTiming, false, kOn)};
  // 8,000 B in 12.5 us are 0.64 GB/s; the bus has 2 x 3/4 of it.
  EXPECT_EQ(WriteTable(rows, 2),
            "gpu,topology,nodes,gpus,op,dtype,bytes,time_us,algbw_GBs,busbw_GBs,library,source\n"
            "local-cpu,memory of one machine,1,4,all_reduce,float64,8000,12.5,0.64,0.96,"
            "millwright-mpi-fp64,\"millwright-cpu-fp64:24 repeats, spread 3.1%; 2 ranks; a "
            "\"\"CPU\"\", 2 processors\"\n");
}

TEST(MeasurementCsv, SourcesSayWhichCurve) {
  const Measurement sustained = AllKinds()[0], burst = AllKinds()[1];
  EXPECT_EQ(StackOf(sustained.source), "millwright-cpu-fp64");
  EXPECT_EQ(StackOf(burst.source), "millwright-cpu-fp64-burst");
  EXPECT_STREQ(ClocksOf(sustained.source), "sustained");
  EXPECT_STREQ(ClocksOf(burst.source), "burst");
  EXPECT_EQ(LibraryOf(std::get<MeasuredCollective>(AllKinds()[12].operation)),
            "millwright-mpi-fp64");
}

}  // namespace
}  // namespace millwright
