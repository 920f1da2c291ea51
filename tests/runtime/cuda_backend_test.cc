// SPDX-License-Identifier: Apache-2.0
//
// What the GPU backend asks of its GPUs, on the fake ones of fake_gpu.h: the same steps as on the
// CPU, and one message for each thing that can fail.
#include "runtime/cuda/cuda_backend.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <string>

#include "runtime/cpu_backend.h"
#include "runtime/execution.h"
#include "runtime/measure.h"
#include "runtime/verification.h"
#include "tests/runtime/fake_gpu.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

GpuOptions Options(ElementType type = ElementType::kFp64) {
  return {.type = type, .timeout = Seconds(60), .arena_chunk = 1 << 16};
}

void ExpectAgreement(const Workload& workload, ElementType type = ElementType::kFp64) {
  SCOPED_TRACE(fmt::format("{} {}", ShortName(workload.parallel), workload.schedule.name));
  FakeNccl nccl;
  RunOutcome outcome;
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    FakeGpu gpu(nccl);
    {
      const GpuCalls calls = gpu.Calls();
      CudaBackend backend(calls, workload, communicator, Options(type));
      RunOutcome own =
          RunSteps(workload, {.type = type, .steps = 2, .verify = true}, communicator, backend);
      if (communicator.rank() == 0) outcome = std::move(own);
    }
    EXPECT_EQ(gpu.chunks, 0);
  });
  ASSERT_GE(outcome.agreements.size(), 2U);
  for (const Agreement& agreement : outcome.agreements) {
    EXPECT_TRUE(agreement.holds())
        << agreement.what << ": " << agreement.worst << " is off by " << agreement.error;
  }
}

TEST(CudaBackend, OneRank) {
  ExpectAgreement(TinyWorkload(WithBiases(TinyModel()), {.micro_batch_size = 2}));
  ExpectAgreement(TinyWorkload(TinyModel(), {}), ElementType::kFp32);
}

TEST(CudaBackend, TensorParallel) {
  for (bool sequence_parallel : {false, true}) {
    ExpectAgreement(TinyWorkload(WithLayers(TinyModel(), 2),
                                 {.tensor = 4, .sequence_parallel = sequence_parallel}));
  }
}

TEST(CudaBackend, ContextParallel) {
  for (ContextParallelKind kind : {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
    ExpectAgreement(
        TinyWorkload(WithLayers(TinyModel(), 2),
                     {.tensor = 2, .sequence_parallel = true, .context = 4, .context_kind = kind}));
  }
}

TEST(CudaBackend, NestedContextParallel) {
  ExpectAgreement(
      TinyWorkload(WithLayers(TinyModel(), 2), {.tensor = 2,
                                                .sequence_parallel = true,
                                                .context = 4,
                                                .context_kind = ContextParallelKind::kNested,
                                                .context_ulysses = 2}));
}

// 3 data ranks cut the buckets unevenly, 2 evenly.
TEST(CudaBackend, EveryZeroStage) {
  for (int zero : {0, 1, 2, 3}) {
    ExpectAgreement(TinyWorkload(WithLayers(TinyModel(), 2), {.data = 3, .zero = zero}, 3));
    ExpectAgreement(TinyWorkload(WithLayers(TinyModel(), 2), {.data = 2, .zero = zero}, 2));
  }
}

TEST(CudaBackend, EverySchedule) {
  for (const EnumName<ScheduleKind>& name : TrainingScheduleNames()) {
    ExpectAgreement(TinyWorkload(WithLayers(TinyModel(), 8),
                                 {.pipeline = 4,
                                  .virtual_stages = ChoosesChunks(name.value) ? 2 : 1,
                                  .schedule = name.value},
                                 8, 4));
  }
}

TEST(CudaBackend, EveryDimensionAtOnce) {
  ExpectAgreement(TinyWorkload(WithBiases(TinyModel()),
                               {.tensor = 2,
                                .sequence_parallel = true,
                                .context = 2,
                                .pipeline = 2,
                                .data = 2,
                                .zero = 3,
                                .recompute = {.granularity = RecomputeGranularity::kFull},
                                .schedule = ScheduleKind::kDualPipe},
                               8));
}

// Rows go in groups of sends and receives, some of them with nothing to send.
TEST(CudaBackend, Experts) {
  for (const int expert_tensor : {1, 2}) {
    ExpectAgreement(TinyWorkload(WithLayers(TinyMoe(24), 2), {.tensor = 2,
                                                              .sequence_parallel = true,
                                                              .data = 2,
                                                              .expert = 4 / expert_tensor,
                                                              .expert_tensor = expert_tensor,
                                                              .zero = 3}));
  }
  ModelConfig model = WithLayers(TinyMoe(), 2);
  model.moe.topk = 1;
  ExpectAgreement(TinyWorkload(model, {.data = 8, .expert = 8}, 16, 1));
}

TEST(CudaBackend, TiedHeadOfAGpt) {
  for (const ScheduleKind kind :
       {ScheduleKind::k1F1B, ScheduleKind::kZbV, ScheduleKind::kDualPipe}) {
    ExpectAgreement(TinyWorkload(WithLayers(TinyGpt(), 8),
                                 {.tensor = 2, .pipeline = 2, .data = 2, .schedule = kind}, 8, 4));
  }
}

std::vector<std::string> Described(const std::vector<ExecutedCall>& calls) {
  std::vector<std::string> lines;
  for (const ExecutedCall& call : calls) {
    lines.push_back(fmt::format("{} {} {} {} {} {}", call.name, Name(call.kind), call.stride,
                                call.ranks, call.elements, call.sent_bytes));
  }
  return lines;
}

// Also the bytes, where 3 ranks do not divide the elements.
TEST(CudaBackend, CallsAreThoseOfTheCpu) {
  for (int data : {2, 3}) {
    const Workload workload = TinyWorkload(
        WithLayers(TinyModel(), 2),
        {.tensor = 2, .sequence_parallel = true, .pipeline = 2, .data = data, .zero = 1}, 6);
    std::vector<std::vector<std::string>> on_cpu(std::size_t(workload.ranks()));
    RunThreads(workload.ranks(), [&](Communicator& communicator) {
      CpuBackend<float> backend(communicator);
      Execution execution(workload, backend);
      execution.ComputeGradients(0);
      execution.Update({});
      on_cpu[std::size_t(communicator.rank())] = Described(execution.calls());
    });
    FakeNccl nccl;
    RunThreads(workload.ranks(), [&](Communicator& communicator) {
      FakeGpu gpu(nccl);
      const GpuCalls calls = gpu.Calls();
      CudaBackend backend(calls, workload, communicator, Options(ElementType::kFp32));
      Execution execution(workload, backend);
      execution.ComputeGradients(0);
      execution.Update({});
      backend.Synchronize();
      EXPECT_EQ(Described(execution.calls()), on_cpu[std::size_t(communicator.rank())]);
    });
  }
}

// The GPU's own time of each operator: in order, and within the step.
TEST(CudaBackend, OperatorsAreTimedOnTheStream) {
  const Workload workload = TinyWorkload(TinyModel(), {});
  FakeNccl nccl;
  RunThreads(1, [&](Communicator& communicator) {
    FakeGpu gpu(nccl);
    const GpuCalls calls = gpu.Calls();
    CudaBackend backend(calls, workload, communicator, Options());
    Execution execution(workload, backend);
    execution.ComputeGradients(0);
    Seconds last;
    EXPECT_GT(execution.operators().size(), 4U * 2 * 4 * 10);
    for (const ExecutedOperator& op : execution.operators()) {
      EXPECT_GE(op.start, last);
      EXPECT_GE(op.end, op.start);
      last = op.end;
    }
  });
}

// Rank 1 comes to the collective only when it has what rank 0 does after it.
TEST(CudaBackend, WhatIsForkedHoldsNothingUp) {
  FakeNccl nccl;
  RunThreads(2, [&](Communicator& communicator) {
    FakeGpu gpu(nccl);
    const GpuCalls calls = gpu.Calls();
    GpuOptions options = Options();
    options.timeout = Seconds(10);
    CudaBackend backend(calls, SplitsOfFirst({2}, 2, communicator.rank()), communicator, options);
    const RankGroup both{.first = 0, .stride = 1, .ranks = 2};
    Tensor sum = Tensor::Zeros(backend, 1, 3, Element::kSum), message(backend, 1, 3);
    if (communicator.rank() == 0) {
      backend.StartFork();
      backend.Collective("sum", CollectiveKind::kAllReduce, both, sum);
      const Backend::Fork fork = backend.Rejoin();
      backend.Run(compute::Fill{.to = message, .value = 7});
      backend.Send("message", 1, 0, Tensor::CopyOf(backend, message));
      backend.Join(fork);
      const Tensor copy = Tensor::CopyOf(backend, sum);
      EXPECT_THAT(backend.Download(copy), testing::Each(2));
    } else {
      backend.Receive(0, 0, message);
      EXPECT_THAT(backend.Download(message), testing::Each(7));
      backend.Run(compute::Fill{.to = sum, .value = 2});
      backend.Collective("sum", CollectiveKind::kAllReduce, both, sum);
      EXPECT_THAT(backend.Download(sum), testing::Each(2));
    }
  });
}

// What `measure` times, on four GPUs: groups of two and of all, messages, and every kernel; outputs
// are written, which the measurer sees to.
TEST(CudaBackend, EveryCaseIsMeasured) {
  constexpr int kRanks = 4;
  FakeNccl nccl;
  RunThreads(kRanks, [&](Communicator& communicator) {
    FakeGpu gpu(nccl);
    const GpuCalls calls = gpu.Calls();
    CudaBackend backend(calls, SplitsOfFirst({2, kRanks}, kRanks, communicator.rank()),
                        communicator, Options(ElementType::kFp32));
    MeasureOptions options{.shortest = Seconds(1e-9)};
    options.limits = {.warm_up = 0, .least = 3, .most = 3};
    Measurer measurer(backend, options);
    std::set<std::string> seen;
    for (const MeasuredCase& what : WithFp8(SweepCases(kRanks, true, SweepOf::kCpu))) {
      // Of each kind the first two, which are the smallest and the largest.
      std::string kind = std::to_string(what.index());
      if (const auto* g = std::get_if<GemmCase>(&what); g && g->fp8) kind = "fp8";
      if (const auto* r = std::get_if<RowsCase>(&what)) kind = NameOf(*r);
      if (const auto* c = std::get_if<CollectiveCase>(&what)) {
        kind = fmt::format("{} {}", Name(c->kind), c->ranks);
      }
      if (!seen.insert(kind).second && !seen.insert(kind + " again").second) continue;
      const Timing timing = measurer.Measure(what);
      EXPECT_EQ(timing.repeats, 3);
      EXPECT_GT(timing.sustained.value, 0) << kind;
    }
    EXPECT_TRUE(seen.contains("fp8 again"));
    const std::optional<OverlapTimes> overlap = measurer.Overlap({.m = 64, .n = 64, .k = 64});
    ASSERT_TRUE(overlap);
    EXPECT_GT(overlap->together.value, 0);
    EXPECT_GE(overlap->bytes, 4);
  });
}

TEST(CudaBackend, Bf16IsRoundedToTheNearest) {
  const Workload workload = TinyWorkload(TinyModel(), {});
  FakeNccl nccl;
  RunThreads(1, [&](Communicator& communicator) {
    FakeGpu gpu(nccl);
    const GpuCalls calls = gpu.Calls();
    CudaBackend backend(calls, workload, communicator, Options(ElementType::kBf16));
    // Eight bits of significand: from 1 on steps of 2^-7, and ties go to the even one.
    const std::vector<double> values{1,         1 + 0x1p-8, 1 + 0x1.8p-7, 1 + 0x1.01p-8,
                                     -3.140625, 0,          1e39};
    Tensor tensor(backend, 1, std::int64_t(values.size()));
    backend.Upload(std::span<const double>(values), tensor);
    EXPECT_THAT(backend.Download(tensor),
                testing::ElementsAre(1, 1, 1 + 0x1p-6, 1 + 0x1p-7, -3.140625, 0,
                                     std::numeric_limits<double>::infinity()));
    const double nan = std::numeric_limits<double>::quiet_NaN();
    Tensor one(backend, 1, 1), sum(backend, 1, 1, Element::kSum);
    backend.Upload(std::span(&nan, 1), one);
    EXPECT_TRUE(std::isnan(backend.Download(one).front()));
    backend.Upload(std::span(&values[1], 1), sum);  // FP32
    EXPECT_EQ(backend.Download(sum).front(), 1 + 0x1p-8);
  });
}

// Operands are rounded on the way in, and multiplied as they then are.
TEST(CudaBackend, ProductsOfFp8) {
  const Workload workload = TinyWorkload(TinyModel(), {});
  FakeNccl nccl;
  RunThreads(1, [&](Communicator& communicator) {
    FakeGpu gpu(nccl);
    const GpuCalls calls = gpu.Calls();
    CudaBackend backend(calls, workload, communicator, Options(ElementType::kFp32));
    Tensor x(backend, 2, 3, Element::kFp8), w(backend, 2, 3, Element::kFp8), y(backend, 2, 2);
    EXPECT_EQ(x.view().bytes(), 6);
    backend.Upload(std::vector<double>{1, 1.0625, 1.07, -500, 0.001, 0}, x);
    backend.Upload(std::vector<double>{1, 2, 3, 0.5, -1, 4}, w);
    // Of steps of an eighth from 1 on, and of 2^-9 next to 0.
    EXPECT_THAT(backend.Download(x), testing::ElementsAre(1, 1, 1.125, -448, 0x1p-9 * 1, 0));
    backend.Run(compute::Linear{.x = x, .w = w, .y = y});
    EXPECT_THAT(backend.Download(y),
                testing::ElementsAre(1 + 2 + 3.375, 0.5 - 1 + 4.5, -448 + 0x1p-8, -224 - 0x1p-9));
    // Of gradients, in steps of a quarter from 1 on; times both scales, and added.
    Tensor dy(backend, 2, 3, Element::kFp8Gradient), scales(backend, 1, 2, Element::kSum);
    backend.Upload(std::vector<double>{1, 1.0625, 1.2, -60000, 0.5, 0}, dy);
    backend.Upload(std::vector<double>{0.5, 4}, scales);
    EXPECT_THAT(backend.Download(dy), testing::ElementsAre(1, 1, 1.25, -57344, 0.5, 0));
    backend.Run(compute::Fill{.to = y, .value = 1});
    backend.Run(compute::Linear{.x = dy,
                                .w = w,
                                .y = y,
                                .add = true,
                                .x_scale = scales.view().Part(0, 1),
                                .w_scale = scales.view().Part(1, 1)});
    EXPECT_THAT(backend.Download(y), testing::ElementsAre(1 + 2 * (1 + 2 + 3.75), 1 + 2 * 4.5,
                                                          1 - 2 * 57343.0, 1 - 2 * 28672.5));
  });
}

// Steps with products in FP8, whose scales ranks of a micro-batch, and with experts of a pipeline
// stage, agree on.
TEST(CudaBackend, StepsInFp8) {
  ExpectAgreement(InFp8(TinyWorkload(WithBiases(TinyModel()),
                                     {.tensor = 2,
                                      .sequence_parallel = true,
                                      .context = 2,
                                      .pipeline = 2,
                                      .data = 2,
                                      .zero = 3,
                                      .schedule = ScheduleKind::kZbH1},
                                     8)));
  ExpectAgreement(InFp8(TinyWorkload(TinyMoe(24), {.tensor = 2,
                                                   .sequence_parallel = true,
                                                   .pipeline = 2,
                                                   .data = 2,
                                                   .expert = 2,
                                                   .expert_tensor = 2})));
}

// --- Failures

std::string MessageOf(const Workload& workload, const GpuOptions& options,
                      const std::function<void(FakeGpu&, int rank)>& prepare) {
  FakeNccl nccl;
  try {
    RunThreads(workload.ranks(), [&](Communicator& communicator) {
      FakeGpu gpu(nccl);
      prepare(gpu, communicator.rank());
      const GpuCalls calls = gpu.Calls();
      CudaBackend backend(calls, workload, communicator, options);
      RunSteps(workload, {.steps = 1}, communicator, backend);
    });
  } catch (const GpuError& error) {
    return error.what();
  }
  return "nothing failed";
}

TEST(CudaBackend, WhatFailsIsNamed) {
  const Workload one = TinyWorkload(TinyModel(), {});
  const Workload two = TinyWorkload(TinyModel(), {.tensor = 2, .sequence_parallel = true});
  const auto fails = [](const char* call, const char* message, int after) {
    return [=](FakeGpu& gpu, int rank) {
      if (rank == 0) gpu.FailAt(call, message, after);
    };
  };
  EXPECT_EQ(MessageOf(one, Options(), [](FakeGpu& gpu, int) { gpu.devices = 0; }),
            "this machine has no GPU");
  EXPECT_EQ(MessageOf(one, Options(), fails("cudaGetDeviceCount", "no driver", 0)),
            "cudaGetDeviceCount: no driver");
  GpuOptions second = Options();
  second.local_rank = 1;
  EXPECT_EQ(MessageOf(one, second, [](FakeGpu&, int) {}),
            "ranks need a GPU each: of this machine's, from 0 on, there is none 1");
  EXPECT_EQ(MessageOf(one, Options(), fails("cudaMalloc", "out of memory", 0)),
            "cudaMalloc of 65536 bytes beside 0 bytes for tensors: out of memory");
  EXPECT_EQ(MessageOf(one, Options(), fails("launch", "an illegal memory access", 40)),
            "launch: an illegal memory access");
  EXPECT_EQ(MessageOf(two, Options(), fails("ncclCommInitRank", "unhandled system error", 0)),
            "rank 0: ncclCommInitRank: unhandled system error");
  EXPECT_EQ(MessageOf(two, Options(), fails("communicate", "invalid usage", 3)),
            "rank 0: ncclAllGather: invalid usage");
  EXPECT_EQ(MessageOf(two, Options(),
                      [](FakeGpu& gpu, int rank) {
                        if (rank == 0) gpu.FailByItself("remote error", 3);
                      }),
            "rank 0: ncclCommGetAsyncError: remote error");
}

// Rank 1 makes no collective: rank 0 gives up after the time-out.
TEST(CudaBackend, ARankThatDoesNotComeEndsTheOthers) {
  const Workload workload = TinyWorkload(TinyModel(), {.tensor = 2, .sequence_parallel = true});
  GpuOptions options = Options();
  options.timeout = Seconds(0.5);
  FakeNccl nccl;
  std::mutex mutex;
  std::string message;
  RunThreads(2, [&](Communicator& communicator) {
    FakeGpu gpu(nccl);
    const GpuCalls calls = gpu.Calls();
    CudaBackend backend(calls, workload, communicator, options);
    if (communicator.rank() == 1) return;
    Execution execution(workload, backend);
    try {
      execution.ComputeGradients(0);
    } catch (const GpuError& error) {
      const std::lock_guard lock(mutex);
      message = error.what();
    }
  });
  EXPECT_EQ(
      message,
      "rank 0: nothing was done for 0.5 s: a collective or a message may wait for a rank that "
      "has ended");
}

// What the host hears of another rank's end ends the wait for the GPU at once.
TEST(CudaBackend, ARankThatFailsEndsTheOthers) {
  const Workload workload = TinyWorkload(TinyModel(), {.tensor = 2, .sequence_parallel = true});
  FakeNccl nccl;
  try {
    RunThreads(2, [&](Communicator& communicator) {
      FakeGpu gpu(nccl);
      const GpuCalls calls = gpu.Calls();
      CudaBackend backend(calls, workload, communicator, Options());
      if (communicator.rank() == 1) throw ConfigError("rank 1 has had enough");
      Execution(workload, backend).ComputeGradients(0);
    });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "rank 1 has had enough");
  }
}

}  // namespace
}  // namespace millwright
