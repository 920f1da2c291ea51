// SPDX-License-Identifier: Apache-2.0
//
// Products in FP8 against those of the same operands as they are, and steps with them against the
// dense reference, which rounds whole tensors by itself.
#include "runtime/linear_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "runtime/cpu_backend.h"
#include "runtime/reference.h"
#include "tests/runtime/expect_agreement.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

std::vector<double> Random(std::int64_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values;
  for (std::int64_t i = 0; i < elements; ++i) values.push_back(normal(random));
  return values;
}

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// An element in the format's normal range is rounded by at most half a step, 2^-(mantissa + 1) of
// itself, one below by half the least step; both are times the scale, largest / the format's.
std::vector<double> MostRounding(const std::vector<double>& values, int mantissa,
                                 int least_exponent, double largest_of_format) {
  const double scale = Largest(values) / largest_of_format;
  std::vector<double> most;
  for (double value : values) {
    most.push_back(std::max(std::ldexp(std::abs(value), -mantissa - 1),
                            std::ldexp(scale, least_exponent - mantissa - 1)));
  }
  return most;
}

constexpr std::int64_t kRows = 21, kIn = 40, kOut = 27;  // no multiples of 16

// |ab - a'b'| <= |a| db + da |b| + da db, summed over what the product sums over.
void ExpectWithin(const std::vector<double>& plain, const std::vector<double>& in_fp8,
                  const std::function<double(std::int64_t i, std::int64_t k)>& a,
                  const std::function<double(std::int64_t i, std::int64_t k)>& da,
                  const std::function<double(std::int64_t j, std::int64_t k)>& b,
                  const std::function<double(std::int64_t j, std::int64_t k)>& db,
                  std::int64_t cols, std::int64_t summed) {
  ASSERT_EQ(plain.size(), in_fp8.size());
  int rounded = 0;
  for (std::int64_t i = 0; i < std::int64_t(plain.size()); ++i) {
    double bound = 1e-12;
    for (std::int64_t k = 0; k < summed; ++k) {
      const std::int64_t row = i / cols, col = i % cols;
      bound += std::abs(a(row, k)) * db(col, k) + da(row, k) * std::abs(b(col, k)) +
               da(row, k) * db(col, k);
    }
    const double off = std::abs(plain[std::size_t(i)] - in_fp8[std::size_t(i)]);
    EXPECT_LE(off, bound) << i;
    rounded += off > bound / 1000 ? 1 : 0;
  }
  EXPECT_GT(rounded, int(plain.size()) / 2);  // it is really in FP8
}

TEST(LinearProducts, AreOffByTheRoundingOfTheirOperands) {
  const std::vector<double> x = Random(kRows * kIn, 1), w = Random(kOut * kIn, 2),
                            dy = Random(kRows * kOut, 3);
  const std::vector<double> x_off = MostRounding(x, 3, -6, 448),
                            w_off = MostRounding(w, 3, -6, 448),
                            dy_off = MostRounding(dy, 2, -14, 57344);
  RunThreads(1, [&](Communicator& communicator) {
    CpuBackend<double> backend(communicator);
    const auto tensor = [&](const std::vector<double>& values, std::int64_t cols) {
      Tensor made(backend, std::int64_t(values.size()) / cols, cols);
      backend.Upload(std::span<const double>(values), made);
      return made;
    };
    const Tensor x_there = tensor(x, kIn), w_there = tensor(w, kIn), dy_there = tensor(dy, kOut);
    LinearProducts plain(backend), in_fp8(backend, {}, 1);
    // Begins with ones, which gradients are added to.
    const auto of = [&](LinearProducts& products,
                        void (LinearProducts::*product)(std::span<const LinearPart>),
                        std::int64_t rows, std::int64_t cols, bool add = false) {
      Tensor to(backend, rows, cols);
      backend.Run(compute::Fill{.to = to, .value = 1});
      (products.*product)({{{.x = x_there, .w = w_there, .dy = dy_there, .to = to, .add = add}}});
      return backend.Download(to);
    };
    const auto at = [](const std::vector<double>& values, std::int64_t cols, bool transposed) {
      return [&values, cols, transposed](std::int64_t i, std::int64_t k) {
        return values[std::size_t(transposed ? k * cols + i : i * cols + k)];
      };
    };
    ExpectWithin(of(plain, &LinearProducts::Forward, kRows, kOut),
                 of(in_fp8, &LinearProducts::Forward, kRows, kOut), at(x, kIn, false),
                 at(x_off, kIn, false), at(w, kIn, false), at(w_off, kIn, false), kOut, kIn);
    for (const bool add : {false, true}) {
      ExpectWithin(of(plain, &LinearProducts::InputGradient, kRows, kIn, add),
                   of(in_fp8, &LinearProducts::InputGradient, kRows, kIn, add), at(dy, kOut, false),
                   at(dy_off, kOut, false), at(w, kIn, true), at(w_off, kIn, true), kIn, kOut);
    }
    ExpectWithin(of(plain, &LinearProducts::WeightGradient, kOut, kIn),
                 of(in_fp8, &LinearProducts::WeightGradient, kOut, kIn), at(dy, kOut, true),
                 at(dy_off, kOut, true), at(x, kIn, true), at(x_off, kIn, true), kIn, kRows);
  });
}

// What is in FP8 by itself, with a largest element that is the format's, is multiplied exactly.
TEST(LinearProducts, OfNumbersInFp8AreExact) {
  RunThreads(1, [](Communicator& communicator) {
    CpuBackend<double> backend(communicator);
    Tensor x(backend, 2, 2), w(backend, 1, 2), y(backend, 2, 1);
    backend.Upload(std::vector<double>{448, -1.125, 0, 0x1p-9}, x);
    backend.Upload(std::vector<double>{1.875, -448}, w);
    LinearProducts(backend, {}, 1).Forward({{{.x = x, .w = w, .to = y}}});
    EXPECT_EQ(backend.Download(y), (std::vector<double>{448 * 1.875 + 1.125 * 448, -448 * 0x1p-9}));
  });
}

// Two ranks have half of the rows each: the scale is that of all of them.
// Between 1 and 1 + 1/8: a step computed in another order must not end on another side.
TEST(LinearProducts, WhatIsHalfwayButForTheLastBitIsHalfway) {
  RunThreads(1, [](Communicator& communicator) {
    CpuBackend<double> backend(communicator);
    const std::vector<double> values{1.0625 - 0x1p-52, 1.0625, 1.0625 + 0x1p-52, 1.0625 + 0x1p-20};
    const double one = 1;
    Tensor x(backend, 1, 4), scale(backend, 1, 1, Element::kSum);
    Tensor rounded(backend, 1, 4, Element::kFp8);
    backend.Upload(std::span(values), x);
    backend.Upload(std::span(&one, 1), scale);
    backend.Run(compute::RoundToFp8{.x = x, .scale = scale, .to = rounded});
    EXPECT_EQ(backend.Download(rounded), (std::vector<double>{1, 1, 1, 1.125}));
  });
}

TEST(LinearProducts, RanksOfATensorHaveOneScale) {
  const std::vector<double> x = Random(kRows * 2 * kIn, 4), w = Random(kOut * kIn, 5);
  std::vector<double> whole, parts(std::size_t(kRows * 2 * kOut));
  const auto forward = [&](Backend& backend, const RankGroup& group, std::int64_t first,
                           std::int64_t rows) {
    Tensor x_there(backend, rows, kIn), w_there(backend, kOut, kIn), y(backend, rows, kOut);
    backend.Upload(std::span(x).subspan(std::size_t(first * kIn), std::size_t(rows * kIn)),
                   x_there);
    backend.Upload(std::span<const double>(w), w_there);
    LinearProducts(backend, group, 1).Forward({{{.x = x_there, .w = w_there, .to = y}}});
    return backend.Download(y);
  };
  RunThreads(1, [&](Communicator& communicator) {
    CpuBackend<double> backend(communicator);
    whole = forward(backend, {}, 0, 2 * kRows);
  });
  RunThreads(2, [&](Communicator& communicator) {
    CpuBackend<double> backend(communicator);
    const int rank = communicator.rank();
    const std::vector<double> own =
        forward(backend, {.first = 0, .stride = 1, .ranks = 2}, rank * kRows, kRows);
    std::copy(own.begin(), own.end(), parts.begin() + rank * kRows * kOut);
  });
  EXPECT_EQ(parts, whole);
}

// --- Steps

TEST(StepsInFp8, OneRank) {
  ExpectAgreement(InFp8(TinyWorkload(TinyModel(), {})));
  ExpectAgreement(InFp8(TinyWorkload(WithBiases(TinyModel()), {.micro_batch_size = 2})));
  ExpectAgreement(InFp8(TinyWorkload(TinyGpt(), {})));
}

TEST(StepsInFp8, TensorSequenceAndContextParallel) {
  for (const bool sequence_parallel : {false, true}) {
    ExpectAgreement(InFp8(TinyWorkload(WithBiases(WithLayers(TinyModel(), 2)),
                                       {.tensor = 2, .sequence_parallel = sequence_parallel})));
    for (ContextParallelKind kind : {ContextParallelKind::kRing, ContextParallelKind::kUlysses}) {
      ExpectAgreement(
          InFp8(TinyWorkload(WithLayers(TinyModel(), 2), {.tensor = 2,
                                                          .sequence_parallel = sequence_parallel,
                                                          .context = 4,
                                                          .context_kind = kind,
                                                          .micro_batch_size = 2})));
    }
  }
  ModelConfig heads = WithLayers(TinyModel(), 2);
  heads.num_query_groups = 8;
  heads.qk_layernorm = true;
  ExpectAgreement(InFp8(TinyWorkload(heads, {.tensor = 8, .sequence_parallel = true})));
}

TEST(StepsInFp8, EveryScheduleAndZeroStage) {
  int index = 0;
  for (const EnumName<ScheduleKind>& name : TrainingScheduleNames()) {
    ExpectAgreement(InFp8(TinyWorkload(WithLayers(TinyModel(), 8),
                                       {.pipeline = 2,
                                        .virtual_stages = ChoosesChunks(name.value) ? 2 : 1,
                                        .data = 2,
                                        .zero = index++ % 4,
                                        .schedule = name.value},
                                       16, 4)));
  }
}

TEST(StepsInFp8, Recomputation) {
  using Module = RecomputeModule;
  std::vector<Recompute> choices{{.granularity = RecomputeGranularity::kFull}};
  for (const std::vector<Module>& modules :
       {std::vector{Module::kCoreAttn}, std::vector{Module::kMlp, Module::kLayerNorm},
        std::vector{Module::kMoe}, std::vector{Module::kMoeAct}}) {
    choices.push_back({.granularity = RecomputeGranularity::kSelective, .modules = modules});
  }
  for (const Recompute& recompute : choices) {
    ExpectAgreement(InFp8(TinyWorkload(TinyMoe(24), {.tensor = 2,
                                                     .sequence_parallel = true,
                                                     .pipeline = 2,
                                                     .data = 2,
                                                     .expert = 2,
                                                     .recompute = recompute,
                                                     .schedule = ScheduleKind::kZbH1})));
  }
}

// Groups of experts that are tensor ranks, data ranks, both, or neither's.
TEST(StepsInFp8, Experts) {
  for (const int tensor : {1, 2}) {
    for (const int data : {1, 2, 4}) {
      for (const int expert : {1, 2, 8}) {
        for (const int expert_tensor : {1, 2}) {
          if (tensor * data % (expert * expert_tensor) != 0) continue;
          ModelConfig experts = WithBiases(TinyMoe(tensor == 2 ? 24 : 0));
          experts.num_layers = 2;
          experts.layers = {{.count = 1, .kind = {}}, {.count = 1, .kind = {.moe = true}}};
          ExpectAgreement(InFp8(TinyWorkload(experts, {.tensor = tensor,
                                                       .sequence_parallel = tensor > 1,
                                                       .data = data,
                                                       .expert = expert,
                                                       .expert_tensor = expert_tensor})));
        }
      }
    }
  }
  // Some experts, and some ranks, get nothing.
  ModelConfig model = TinyMoe();
  model.moe.topk = 1;
  ExpectAgreement(InFp8(TinyWorkload(model, {.data = 8, .expert = 8}, 16, 1)));
}

TEST(StepsInFp8, EveryDimensionAtOnce) {
  for (const ScheduleKind schedule : {ScheduleKind::kDualPipe, ScheduleKind::kZbV}) {
    ExpectAgreement(InFp8(TinyWorkload(WithBiases(TinyMoe(24)),
                                       {.tensor = 2,
                                        .sequence_parallel = true,
                                        .context = 2,
                                        .pipeline = 2,
                                        .data = 2,
                                        .expert = 2,
                                        .expert_tensor = 2,
                                        .zero = 3,
                                        .schedule = schedule},
                                       8)));
  }
}

// Cut in any way a step is the same step, and not that without FP8: an operand is off by 2% to 5%
// of itself at the root mean square (of steps of 2^-3 and 2^-2 of a power of two), its product by
// about as much, and what goes through twelve of them by several times that; the loss, a mean of
// 5.7 (the logarithm of 301) over tokens, by far less.
TEST(StepsInFp8, AreOffFromThoseWithoutByRounding) {
  const Workload without = TinyWorkload(TinyModel(), {}), with = InFp8(without);
  Reference plain(without, false), rounded(with, false);
  const double loss = plain.ComputeGradients(0), rounded_loss = rounded.ComputeGradients(0);
  EXPECT_GT(std::abs(rounded_loss - loss), 1e-5 * loss);
  EXPECT_LT(std::abs(rounded_loss - loss), 2e-2 * loss);
  for (const auto& [name, gradient] : plain.gradients()) {
    const std::vector<double>& other = rounded.gradients().at(name);
    double square = 0, off = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      square += gradient[i] * gradient[i];
      off += (gradient[i] - other[i]) * (gradient[i] - other[i]);
    }
    EXPECT_GT(std::sqrt(off / square), 5e-3) << Text(name, without.model);
    EXPECT_LT(std::sqrt(off / square), 0.4) << Text(name, without.model);
  }
}

// In float no element of the tiny model is rounded another way than in double, and of a wider one
// some are: then the others follow.
TEST(StepsInFp8, InFloatOneRoundingMovesTheOthers) {
  ModelConfig wide = TinyModel();
  wide.hidden_size = 128;
  wide.kv_channels = 16;
  wide.ffn_hidden_size = 256;
  for (const bool moved : {false, true}) {
    Workload workload = InFp8(TinyWorkload(moved ? wide : TinyModel(), {.tensor = 2}));
    workload.seed = moved ? 3 : 1;
    ExpectAgreement(workload, ElementType::kFp32);
    const RunOutcome outcome =
        RunInThreads(workload, {.type = ElementType::kFp32, .steps = 1, .verify = true});
    if (moved) {
      EXPECT_GT(outcome.agreements[1].error, 1e-2);
    } else {
      EXPECT_LT(outcome.agreements[1].error, 1e-5);
    }
    ExpectAgreement(workload);
  }
}

// So a token's experts cannot be told apart in float.
TEST(StepsInFp8, WhatRoundingCouldDecideIsNotCompared) {
  try {
    RunInThreads(InFp8(TinyWorkload(TinyMoe(), {})),
                 {.type = ElementType::kFp32, .steps = 1, .verify = true});
    FAIL();
  } catch (const ConfigError& error) {
    const std::string_view message = error.what();
    EXPECT_TRUE(message.ends_with("--verify needs --dtype fp64")) << message;
  }
}

TEST(StepsInFp8, WhatIsNotBuiltIsRefusedByName) {
  Workload workload = InFp8(TinyWorkload(TinyModel(), {.tensor = 4}));
  EXPECT_EQ(WhyNotExecutable(workload),
            (std::vector<std::string>{
                "run does not execute products in FP8 on more tensor ranks than KV heads yet"}));
  for (const Precision precision : {Precision::kMxfp8, Precision::kNvfp4}) {
    workload.training.precision = precision;
    EXPECT_EQ(WhyNotExecutable(workload),
              (std::vector<std::string>{
                  "run does not execute products in mxfp8 and nvfp4 (a scale for each block; fp8 "
                  "has one for each tensor) yet"}));
  }
}

}  // namespace
}  // namespace millwright
