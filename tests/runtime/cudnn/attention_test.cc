// SPDX-License-Identifier: Apache-2.0
//
// What cuDNN says to our graphs of attention, for GPUs that are described and not there: it looks
// for an engine, generates the kernel, and hands it to the driver, whose stub
// (tests/CMakeLists.txt) refuses it.  Without libcudnn there is nothing to ask.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/cuda/cudnn_attention.h"

namespace millwright {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// The driver's limits of A100, H100 and B200 in those that cuDNN reads (CUDA C++ Programming Guide,
// "Compute Capabilities").
std::string Gpu(int compute_capability, int multiprocessors, int shared_memory) {
  return fmt::format(
      R"({{"deviceVer":{},"driverVer":13000,"cudaDeviceId":0,"deviceName":"a GPU",)"
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
      R"("regsPerBlock":65536,"multiProcessorCount":{},"warpSize":32,)"
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":1,"isTccDriver":0,)"
      R"("supportCoopLaunch":1,"smClockRateKHz":1410000,"memClockRateKHz":1593000,)"
      R"("l2CacheSize":41943040,"totalGlobalMem":80000000000}})",
      compute_capability, multiprocessors, shared_memory);
}

constexpr const char* kRefusedByTheStub = "cuLibraryLoadData returned error";

// Why nothing can be asked on this machine; or starts it.
std::string Missing(CudnnAttention& cudnn, const std::string& gpu) {
  if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) return dlerror();
  std::string started = cudnn.Start(gpu);
  if (started.find("libcudnn") != started.npos) return started;
  EXPECT_EQ(started, "");
  return "";
}

template <class Op>
AttentionCall Call(std::int64_t sequences, std::int64_t tokens, std::int64_t head_size, int heads,
                   int groups) {
  Op op;
  op.layout = {.sequences = sequences,
               .head_size = head_size,
               .heads = heads,
               .groups = groups,
               .scale = 0.125};
  op.q.rows = sequences * tokens;
  return op;
}

TEST(CudnnAttention, HasAKernelForBothPasses) {
  for (const std::string& gpu :
       {Gpu(800, 108, 166912), Gpu(900, 132, 232448), Gpu(1000, 148, 232448)}) {
    CudnnAttention cudnn;
    if (const std::string missing = Missing(cudnn, gpu); !missing.empty()) GTEST_SKIP() << missing;
    for (const AttentionCall& call : {Call<compute::Attention>(1, 8192, 128, 8, 1),
                                      Call<compute::AttentionBackward>(1, 8192, 128, 8, 1),
                                      Call<compute::Attention>(2, 45, 24, 8, 8),
                                      Call<compute::AttentionBackward>(2, 45, 24, 8, 8)}) {
      std::int64_t workspace = 0;
      EXPECT_THAT(cudnn.Prepare(call, workspace), AnyOf("", HasSubstr(kRefusedByTheStub)))
          << gpu << ", call " << call.index();
    }
  }
}

// So that the test above can fail.
TEST(CudnnAttention, SaysWhyItHasNoKernel) {
  CudnnAttention cudnn;
  const std::string missing = Missing(cudnn, Gpu(900, 132, 232448));
  if (!missing.empty()) GTEST_SKIP() << missing;
  std::int64_t workspace = 0;
  // Rows of no whole 16 bytes.
  EXPECT_EQ(cudnn.Prepare(Call<compute::Attention>(1, 512, 12, 8, 1), workspace),
            "it has no kernel for this on this GPU");
}

TEST(CudnnAttention, TakesWhatItsKernelsAreFor) {
  const AttentionLayout layout{.head_size = 128, .heads = 8, .groups = 2};
  EXPECT_TRUE(CudnnAttention::Takes(layout, ElementType::kBf16));
  EXPECT_FALSE(CudnnAttention::Takes(layout, ElementType::kFp32));
  AttentionLayout other = layout;
  other.window = 512;
  EXPECT_FALSE(CudnnAttention::Takes(other, ElementType::kBf16));
  for (const std::int64_t head_size : {4, 132, 192}) {
    other = layout;
    other.head_size = head_size;
    EXPECT_FALSE(CudnnAttention::Takes(other, ElementType::kBf16)) << head_size;
  }
}

}  // namespace
}  // namespace millwright
