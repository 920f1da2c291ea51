// SPDX-License-Identifier: Apache-2.0
#include "validate/measurement_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config_io.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

const std::string kGemm = "gpu,dtype,m,n,k,time_us,source\n";

MeasurementSet Read(const std::string& text) {
  MeasurementSet set;
  ReadMeasurementFile("ops.csv", text, set);
  return set;
}

std::string MistakesOf(const std::string& text) {
  try {
    Read(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(MeasurementFiles, ReadsAllSixTables) {
  MeasurementSet set = Read(kGemm + "H100,bfloat16,4096,8192,1024,120.5,mine\n");
  ReadMeasurementFile("a",
                      "gpu,dtype,phase,batch,seq_q,seq_kv,heads,kv_heads,head_dim,causal,time_us,"
                      "source\nA100,bfloat16,prefill,1,1024,1024,32,2,128,1,86.3,\"x, y\"\n",
                      set);
  ReadMeasurementFile("c",
                      "gpu,topology,nodes,gpus,op,dtype,bytes,time_us,algbw_GBs,busbw_GBs,library,"
                      "source\nH100,8x400G IB,2,16,all_reduce,half,1000000,100,10,18.75,nccl,x\n",
                      set);
  ReadMeasurementFile(
      "m",
      "gpu,dtype,num_tokens,hidden,inter,topk,num_experts,moe_tp,moe_ep,distribution,time_us,"
      "source\nA100,bfloat16,64,4096,1536,8,128,1,2,balanced,300,x\n",
      set);
  ReadMeasurementFile("g",
                      "gpu,dtype,num_groups,m_per_group,n,k,stage,time_us,source\n"
                      "B200,bfloat16,8,512,4096,7168,bwd_grad_w,400,x\n",
                      set);
  ReadMeasurementFile("b", "gpu,op,bytes,time_us,source\nA100,rope,20643840,20,x\n", set);

  ASSERT_THAT(set.rows, SizeIs(6));
  EXPECT_THAT(set.files, ElementsAre("ops.csv", "a", "c", "m", "g", "b"));
  EXPECT_THAT(set.flagged, IsEmpty());
  EXPECT_EQ(set.rows[0].operation, MeasuredOperation(MeasuredGemm{4096, 8192, 1024}));
  EXPECT_DOUBLE_EQ(set.rows[0].time.value, 120.5e-6);
  EXPECT_EQ(set.rows[0].line, 2);
  EXPECT_EQ(set.rows[1].operation, MeasuredOperation(MeasuredAttention{
                                       AttentionPhase::kPrefill, 1, 1024, 1024, 32, 2, 128, true}));
  EXPECT_EQ(set.rows[1].source, "x, y");
  EXPECT_EQ(set.rows[2].operation,
            MeasuredOperation(MeasuredCollective{"all_reduce", "8x400G IB", "nccl", 2, 16, 1_MB}));
  EXPECT_EQ(set.rows[3].operation,
            MeasuredOperation(MeasuredMoe{64, 4096, 1536, 8, 128, 1, 2, "balanced"}));
  EXPECT_EQ(set.rows[4].operation, MeasuredOperation(MeasuredGroupedGemm{
                                       GroupedGemmStage::kWeightGradient, 8, 512, 4096, 7168}));
  EXPECT_EQ(set.rows[5].operation, MeasuredOperation(MeasuredMemoryBound{"rope", Bytes(20643840)}));
  EXPECT_EQ(set.rows[5].table(), "memory_bound");
}

TEST(MeasurementFiles, ColumnsThatAreMissingOrMisspelt) {
  EXPECT_EQ(MistakesOf("gpu,dtype,m,n,time_us,sourc\n"),
            "ops.csv: at line 1: expected the columns of gemm (gpu,dtype,m,n,k,time_us,source); "
            "missing: k, source\n"
            "ops.csv: at line 1: unknown column \"sourc\", did you mean \"source\"?");
  EXPECT_EQ(MistakesOf("gpu,dtype,m,n,k,k,time_us,source\n"),
            "ops.csv: at line 1: column \"k\" is there twice");
  EXPECT_EQ(MistakesOf("a,b\n1,2\n"),
            "ops.csv: at line 1: expected the columns of a table of measurements (gemm, attention, "
            "collective, moe, grouped_gemm, memory_bound), got \"a,b\"");
  EXPECT_EQ(MistakesOf(""), "ops.csv: expected a line of column names, got an empty file");
  EXPECT_EQ(MistakesOf(kGemm), "ops.csv: expected rows under the column names, got none");
}

TEST(MeasurementFiles, EveryCellThatIsWrongByRow) {
  EXPECT_EQ(MistakesOf(kGemm + "H100,bfloat16,0,8192,1024,120,x\n"
                               "H100,bfloat16,64,81.5,1024,nan,x\n"
                               "H100,,64,64,64,-3,x\n"
                               "H100,bfloat16,64\n"),
            "ops.csv: at line 5: expected 7 cells, one for each column, got 3\n"
            "ops.csv: at line 2, m: expected an integer from 1 to 1099511627776, got \"0\"\n"
            "ops.csv: at line 3, time_us: expected a finite number above 0, got \"nan\"\n"
            "ops.csv: at line 3, n: expected an integer from 1 to 1099511627776, got \"81.5\"\n"
            "ops.csv: at line 4, dtype: expected a text, got \"\"\n"
            "ops.csv: at line 4, time_us: expected a finite number above 0, got \"-3\"");
  EXPECT_EQ(MistakesOf("gpu,dtype,num_groups,m_per_group,n,k,stage,time_us,source\n"
                       "B200,bfloat16,8,512,4096,7168,backward,400,\"x\n"),
            "ops.csv: at line 2: expected quotes around whole cells and \"\" for a quote inside "
            "one");
}

// 2 x 4096^3 FLOPs at 989 TFLOP/s are 139.0 us: no H100 does it in 30.
TEST(MeasurementFiles, FlagsWhatNoGpuCanDoAndDuplicates) {
  const std::string good = "H100,bfloat16,4096,4096,4096,190,x\n";
  const MeasurementSet set = Read(kGemm + good + "H100,bfloat16,4096,4096,4096,30,x\n" + good +
                                  "H100,bfloat16,4096,4096,4096,195,x\n");
  ASSERT_THAT(set.rows, SizeIs(2));  // the first and the last
  EXPECT_EQ(set.rows[1].line, 5);
  ASSERT_THAT(set.flagged, SizeIs(2));
  EXPECT_EQ(set.flagged[0].line, 4);
  EXPECT_EQ(set.flagged[0].what, "the same row is there already; it counts once");
  EXPECT_EQ(set.flagged[1].line, 3);
  EXPECT_EQ(set.flagged[1].what, "30 us is less than H100 can take (139 us at its peak)");
}

TEST(MeasurementFiles, RefusesAnotherUnitThanMicroseconds) {
  // The same GEMM in milliseconds, and in nanoseconds.
  EXPECT_EQ(MistakesOf(kGemm + "H100,bfloat16,4096,4096,4096,0.19,x\n"),
            "ops.csv: at line 2, time_us: expected microseconds, got 0.19: 1 of 1 rows take less "
            "than the datasheet allows; is the unit another?");
  EXPECT_EQ(MistakesOf(kGemm + "H100,bfloat16,4096,4096,4096,190000,x\n"),
            "ops.csv: at line 2, time_us: expected microseconds, got 190000: 1 of 1 rows take over "
            "a hundred times what the datasheet allows; is the unit another?");
}

TEST(MeasurementFiles, FlagsABandwidthThatContradictsTheTime) {
  const std::string columns =
      "gpu,topology,nodes,gpus,op,dtype,bytes,time_us,algbw_GBs,busbw_GBs,library,source\n";
  // 100 MB in 1 ms are 100 GB/s.
  const MeasurementSet set =
      Read(columns + "H100,x,1,8,all_gather,half,100000000,1000,100,87.5,nccl,x\n" +
           "H100,x,1,8,all_gather,half,200000000,1000,100,87.5,nccl,x\n");
  ASSERT_THAT(set.rows, SizeIs(1));
  ASSERT_THAT(set.flagged, SizeIs(1));
  EXPECT_EQ(set.flagged[0].what, "algbw_GBs says 100, but bytes over time_us are 200 GB/s");
  EXPECT_EQ(MistakesOf(columns + "H100,x,9,8,all_gather,half,100000000,1000,100,87.5,nccl,x\n"),
            "ops.csv: at line 2, nodes: expected at most as many as gpus, 8, got 9");
}

class MeasurementFolder : public InFolder {};

TEST_F(MeasurementFolder, TakesTheFilesOfAFolderByNameAndEveryMistakeOfAll) {
  std::filesystem::create_directory("ops");
  Write("ops/b.csv", kGemm + "H100,bfloat16,4096,4096,4096,190,x\n");
  Write("ops/a.csv", kGemm + "H100,bfloat16,4096,4096,4096,191,x\n");
  Write("ops/README.md", "no measurements");
  const MeasurementSet set = ReadMeasurements(std::vector<std::string>{"ops"});
  EXPECT_THAT(set.files, ElementsAre("ops/a.csv", "ops/b.csv"));
  EXPECT_THAT(set.rows, SizeIs(2));

  std::filesystem::create_directory("none");
  Write("bad.csv", kGemm + "H100,bfloat16,4096,4096,4096,inf,x\n");
  try {
    ReadMeasurements(std::vector<std::string>{"none", "bad.csv", "absent.csv"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "none: expected a folder with .csv, .txt or .log files of measurements, found "
                 "none\n"
                 "bad.csv: at line 2, time_us: expected a finite number above 0, got \"inf\"\n"
                 "absent.csv: no such file");
  }
}

}  // namespace
}  // namespace millwright
