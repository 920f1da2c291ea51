// SPDX-License-Identifier: Apache-2.0
#include "validate/nccl_tests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config_io.h"
#include "validate/measurement_files.h"

namespace millwright {
namespace {

using testing::SizeIs;

const std::string kHeader =
    "# nThread 1 nGpus 1 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 5\n"
    "#\n"
    "# Using devices\n"
    "#  Rank  0 Group  0 Pid   100 on   node-a device  0 [0x07] NVIDIA H100 80GB HBM3\n"
    "#  Rank  1 Group  0 Pid   101 on   node-a device  1 [0x08] NVIDIA H100 80GB HBM3\n"
    "#  Rank  2 Group  0 Pid   102 on   node-b device  0 [0x07] NVIDIA H100 80GB HBM3\n"
    "#  Rank  3 Group  0 Pid   103 on   node-b device  1 [0x08] NVIDIA H100 80GB HBM3\n";
const std::string kRows =
    "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n"
    "        1024           256     float     sum      -1    27.44    0.04    0.06      0    26.9\n"
    "    67108864      16777216     float     sum      -1   1234.5   54.36   81.54      0  1230.0\n"
    "# Out of bounds values : 0 OK\n"
    "# Avg bus bandwidth    : 40.8\n";

std::string MistakesOf(const std::string& text) {
  MeasurementSet set;
  try {
    ReadMeasurementFile("nccl.txt", text, set);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(NcclTests, ReadsCollectiveGpusAndRows) {
  MeasurementSet set;
  ReadMeasurementFile("nccl.txt", "# Collective test starting: all_reduce_perf\n" + kHeader + kRows,
                      set);
  ASSERT_THAT(set.rows, SizeIs(2));
  EXPECT_EQ(set.rows[0].gpu, "H100-SXM");
  EXPECT_EQ(set.rows[0].dtype, "float");
  EXPECT_DOUBLE_EQ(set.rows[1].time.value, 1234.5e-6);
  EXPECT_EQ(set.rows[1].line, 12);
  EXPECT_EQ(set.rows[1].operation, MeasuredOperation(MeasuredCollective{
                                       "all_reduce", "", "nccl-tests", 2, 4, Bytes(67108864)}));
}

TEST(NcclTests, TheCommandLineNamesTheCollectiveToo) {
  MeasurementSet set;
  ReadMeasurementFile("nccl.txt",
                      "$ mpirun -np 4 ./build/all_gather_perf -b 1K\n" + kHeader + kRows, set);
  ASSERT_THAT(set.rows, SizeIs(2));
  EXPECT_EQ(std::get<MeasuredCollective>(set.rows[0].operation).op, "all_gather");
}

TEST(NcclTests, SaysWhatIsMissing) {
  EXPECT_EQ(MistakesOf(kHeader + kRows),
            "nccl.txt: at line 10: which collective is this? Expected \"# Collective test "
            "starting: all_reduce_perf\" or the command line above it");
  EXPECT_EQ(MistakesOf("# Collective test starting: all_reduce_perf\n" + kRows),
            "nccl.txt: at line 4: expected a line \"# Rank N ... on HOST device N [...] GPU\" for "
            "each of two ranks or more above the rows");
  EXPECT_EQ(MistakesOf("# Collective test starting: all_reduce_perf\n" + kHeader),
            "nccl.txt: expected rows of nccl-tests: size, count, type, redop, root, time, ...");
  EXPECT_EQ(MistakesOf("# Collective test starting: all_reduce_perf\n" + kHeader +
                       "  1024  256  float  sum  -1  nan  0.04  0.06  0\n"
                       "#  Rank  4 Group  0 Pid 1 on node-c device  1 [0x08] NVIDIA A100\n"),
            "nccl.txt: at line 9, time: expected a number above 0, got \"nan\"\n"
            "nccl.txt: at line 10, GPU: expected every rank on the same GPU, H100-SXM, got "
            "\"A100-80GB\"");
}

}  // namespace
}  // namespace millwright
