// SPDX-License-Identifier: Apache-2.0
//
// When attention is a library's, and when our own kernels': on the fake GPUs, whose library
// computes in fp32 and fp64.
#include "runtime/cuda/library_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_backend.h"
#include "runtime/verification.h"
#include "tests/runtime/fake_gpu.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Values = std::vector<double>;

Values Numbers(std::int64_t count, double seed) {
  Values values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(seed + 1.7 * double(i));
  return values;
}

// Attention of numbers, both passes: output, log sum, dq, dk, dv.
std::vector<Values> Attended(Backend& backend, std::int64_t tokens, std::int64_t window = 0) {
  const AttentionLayout layout{
      .sequences = 2, .head_size = 8, .heads = 4, .groups = 2, .scale = 0.3, .window = window};
  const std::int64_t rows = layout.sequences * tokens, q_cols = 32, k_cols = 16;
  const auto upload = [&](std::int64_t cols, double seed) {
    Tensor tensor(backend, rows, cols);
    backend.Upload(Numbers(rows * cols, seed), tensor);
    return tensor;
  };
  const Tensor q = upload(q_cols, 1), k = upload(k_cols, 2), v = upload(k_cols, 3),
               doutput = upload(q_cols, 4);
  std::vector<std::int32_t> order;
  for (std::int32_t i = 0; i < tokens; ++i) order.push_back(i);
  Tensor positions(backend, 1, tokens, Element::kIndex);
  backend.Upload(order, positions);
  Tensor output(backend, rows, q_cols), log_sum(backend, rows, layout.heads, Element::kSum);
  Tensor dq(backend, rows, q_cols), dk(backend, rows, k_cols), dv(backend, rows, k_cols);
  backend.Attend({.layout = layout,
                  .q = q,
                  .k = k,
                  .v = v,
                  .positions = positions,
                  .output = output,
                  .log_sum = log_sum});
  backend.AttendBackward({.layout = layout,
                          .q = q,
                          .k = k,
                          .v = v,
                          .positions = positions,
                          .output = output,
                          .log_sum = log_sum,
                          .doutput = doutput,
                          .dq = dq,
                          .dk = dk,
                          .dv = dv});
  return {backend.Download(output), backend.Download(log_sum), backend.Download(dq),
          backend.Download(dk), backend.Download(dv)};
}

std::vector<Values> OnCpu(std::int64_t tokens, std::int64_t window = 0) {
  std::vector<Values> attended;
  RunThreads(1, [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    attended = Attended(backend, tokens, window);
  });
  return attended;
}

struct Done {
  std::vector<std::string> warnings;
  std::string attention_by;
  FakeGpu::Attention library;
};

// Calls use(backend) with one on a fake GPU whose library is so.
Done OnFakeGpu(const FakeGpu::Attention& library, const std::function<void(CudaBackend&)>& use) {
  Done done;
  FakeNccl nccl;
  RunThreads(1, [&](Communicator& communicator) {
    FakeGpu gpu(nccl);
    gpu.attention = library;
    const GpuCalls calls = gpu.Calls();
    {
      CudaBackend backend(
          calls, std::vector<CommunicatorSplit>{}, communicator,
          {.type = ElementType::kFp32,
           .timeout = Seconds(60),
           .arena_chunk = 1 << 16,
           .warn = [&](const std::string& line) { done.warnings.push_back(line); }});
      use(backend);
      done.attention_by = backend.AttentionBy();
      done.library = gpu.attention;
    }
    EXPECT_EQ(gpu.chunks, 0);
    EXPECT_EQ(gpu.attention.created, library.missing.empty() ? 0 : 1);
  });
  return done;
}

TEST(LibraryAttention, IsPreparedAndComparedOnceForAShape) {
  const Done done = OnFakeGpu({.is_there = true}, [](CudaBackend& backend) {
    for (const std::int64_t tokens : {5, 5, 7, 5})
      EXPECT_EQ(Attended(backend, tokens), OnCpu(tokens));
    EXPECT_EQ(backend.used_bytes(), 0);
  });
  EXPECT_EQ(done.library.prepared, 4);  // two shapes, two passes
  EXPECT_EQ(done.library.run, 8);
  EXPECT_EQ(done.attention_by, "Fake 1.0");
  EXPECT_THAT(done.warnings, ElementsAre());
}

TEST(LibraryAttention, IsNotAskedForWhatItDoesNotTake) {
  const Done window = OnFakeGpu({.is_there = true}, [](CudaBackend& backend) {
    EXPECT_EQ(Attended(backend, 6, 3), OnCpu(6, 3));
    EXPECT_EQ(Attended(backend, 1), OnCpu(1));
  });
  EXPECT_EQ(window.library.created + window.library.prepared, 0);
  EXPECT_EQ(window.attention_by, "own kernels");
  EXPECT_THAT(window.warnings, ElementsAre());
  const Done none =
      OnFakeGpu({}, [](CudaBackend& backend) { EXPECT_EQ(Attended(backend, 6), OnCpu(6)); });
  EXPECT_EQ(none.attention_by, "own kernels");
  EXPECT_THAT(none.warnings, ElementsAre());
}

TEST(LibraryAttention, OwnKernelsGoOnWhereItCannot) {
  const auto twice = [](CudaBackend& backend) {
    for (const std::int64_t tokens : {5, 7, 5}) EXPECT_EQ(Attended(backend, tokens), OnCpu(tokens));
  };
  const Done missing = OnFakeGpu({.is_there = true, .missing = "no libfake.so"}, twice);
  EXPECT_EQ(missing.library.created, 1);
  EXPECT_EQ(missing.library.prepared, 0);
  EXPECT_EQ(missing.attention_by, "own kernels");
  EXPECT_THAT(missing.warnings, ElementsAre(HasSubstr("no libfake.so")));

  const Done refused = OnFakeGpu({.is_there = true, .refusal = "not supported"}, twice);
  EXPECT_EQ(refused.library.prepared, 4);
  EXPECT_EQ(refused.library.run, 0);
  EXPECT_EQ(refused.attention_by, "own kernels");
  EXPECT_THAT(refused.warnings,
              ElementsAre("attention is computed by our own kernels where Fake 1.0 cannot: forward "
                          "of 2 x 5 tokens, 4 heads of 8 for 2 of keys: not supported"));

  const Done failed = OnFakeGpu({.is_there = true, .failure = "launch failed"}, twice);
  EXPECT_EQ(failed.library.run, 4);
  EXPECT_THAT(failed.warnings, ElementsAre(HasSubstr("launch failed")));
}

TEST(LibraryAttention, OwnKernelsGoOnWhereItIsWrong) {
  const auto once = [](CudaBackend& backend) { EXPECT_EQ(Attended(backend, 9), OnCpu(9)); };
  const Done wrong = OnFakeGpu({.is_there = true, .factor = 1.2}, once);
  EXPECT_EQ(wrong.library.run, 2);
  EXPECT_EQ(wrong.attention_by, "own kernels");
  EXPECT_THAT(wrong.warnings, ElementsAre(AllOf(HasSubstr("the output is off by"),
                                                HasSubstr("where BF16 leaves 0.031"))));
  const Done nothing = OnFakeGpu({.is_there = true, .factor = 0}, once);
  EXPECT_THAT(nothing.warnings, ElementsAre(HasSubstr("the output is off by inf")));
  // As far off as BF16 rounds.
  const Done rounded = OnFakeGpu({.is_there = true, .factor = 1 + 1.0 / 256},
                                 [](CudaBackend& backend) { Attended(backend, 9); });
  EXPECT_EQ(rounded.attention_by, "Fake 1.0");
  EXPECT_THAT(rounded.warnings, ElementsAre());
}

TEST(LibraryAttention, ThatFailsLaterEndsTheRun) {
  FakeNccl nccl;
  RunThreads(1, [&](Communicator& communicator) {
    FakeGpu gpu(nccl);
    gpu.attention.is_there = true;
    const GpuCalls calls = gpu.Calls();
    CudaBackend backend(calls, std::vector<CommunicatorSplit>{}, communicator,
                        {.type = ElementType::kFp32, .timeout = Seconds(60)});
    Attended(backend, 5);
    gpu.attention.failure = "launch failed";
    try {
      Attended(backend, 5);
      ADD_FAILURE() << "no error";
    } catch (const GpuError& error) {
      EXPECT_STREQ(error.what(), "attention by Fake 1.0: launch failed");
    }
  });
}

TEST(LibraryAttention, StepsAreThoseOfTheReference) {
  for (const ParallelConfig& parallel :
       {ParallelConfig{.micro_batch_size = 2}, ParallelConfig{.tensor = 2, .pipeline = 2},
        ParallelConfig{.context = 2, .context_kind = ContextParallelKind::kUlysses}}) {
    const Workload workload = TinyWorkload(WithLayers(TinyModel(), 2), parallel);
    FakeNccl nccl;
    RunOutcome outcome;
    RunThreads(workload.ranks(), [&](Communicator& communicator) {
      FakeGpu gpu(nccl);
      gpu.attention.is_there = true;
      const GpuCalls calls = gpu.Calls();
      CudaBackend backend(calls, workload, communicator,
                          {.type = ElementType::kFp64, .timeout = Seconds(60)});
      RunOutcome own = RunSteps(workload, {.type = ElementType::kFp64, .steps = 2, .verify = true},
                                communicator, backend);
      EXPECT_GT(gpu.attention.run, 0);
      if (communicator.rank() == 0) outcome = std::move(own);
    });
    EXPECT_EQ(outcome.attention_by, "Fake 1.0");
    ASSERT_GE(outcome.agreements.size(), 2U);
    EXPECT_TRUE(outcome.holds());
  }
}

}  // namespace
}  // namespace millwright
