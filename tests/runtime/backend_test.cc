// SPDX-License-Identifier: Apache-2.0
//
// Buffers of a backend: who has them, and how much they are at most.
#include "runtime/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu_backend.h"
#include "runtime/execution.h"
#include "tests/runtime/tiny_workload.h"

namespace millwright {
namespace {

void OnOneRank(const std::function<void(Backend&)>& body) {
  RunThreads(1, [&](Communicator& communicator) {
    CpuBackend<float> backend(communicator);
    body(backend);
  });
}

TEST(Backend, PeakIsTheMostThatTensorsHoldAtOnce) {
  OnOneRank([](Backend& backend) {
    {
      Tensor a(backend, 10, 10);  // 400 B
      Tensor b = std::move(a);
      Tensor c(backend, 5, 5);  // 100 B: 500 at once
    }
    EXPECT_EQ(backend.peak_bytes(), 500);
    Tensor d(backend, 1, 25);  // 100 B again, alone
    EXPECT_EQ(backend.peak_bytes(), 500);
    d = Tensor(backend, 1, 125);  // 500 B beside the 100 that it replaces
    EXPECT_EQ(backend.peak_bytes(), 600);
  });
}

TEST(Backend, WhatIsNotWrittenIsNoNumber) {
  OnOneRank([](Backend& backend) {
    const Tensor fresh(backend, 2, 2);
    for (double value : backend.Download(fresh)) EXPECT_TRUE(std::isnan(value));
  });
}

TEST(Backend, AGroupOfOneCallsNobody) {
  OnOneRank([](Backend& backend) {
    Tensor data = Tensor::Zeros(backend, 1, 3), other(backend, 1, 3);
    backend.Collective("a", CollectiveKind::kAllReduce, {}, data);
    backend.AllToAll("b", {}, data, other);
    EXPECT_THAT(backend.Download(other), testing::Each(0));
    EXPECT_TRUE(backend.calls().empty());
  });
}

// ZeRO's state is what shrinks with data ranks: of four ranks with n parameters each, shares of
// gradients and two moments are 3n/4 elements, and without ZeRO 3n.
TEST(Backend, PeakOfAStepShrinksWithZero) {
  const ModelConfig model = WithLayers(TinyModel(), 1);
  const auto peak = [&](int zero) {
    const Workload workload = TinyWorkload(model, {.data = 4, .zero = zero});
    std::int64_t of_first = 0;
    RunThreads(4, [&](Communicator& communicator) {
      CpuBackend<double> backend(communicator);
      Execution execution(workload, backend);
      execution.ComputeGradients(0);
      execution.Update({});
      if (communicator.rank() == 0) of_first = backend.peak_bytes();
    });
    return of_first;
  };
  std::int64_t saved = 0;
  for (int layer = -1; layer <= 1; ++layer) {
    std::int64_t elements = 0;
    for (const TensorPart& part : PartsOf(TinyWorkload(model, {.data = 4}), layer, {})) {
      elements += part.elements();
    }
    // Of embedding, layer and head each a bucket, of which rank 0 has the first quarter.
    saved += 3 * (elements - elements / 4) * 8;
  }
  EXPECT_EQ(peak(0) - peak(1), saved);
}

}  // namespace
}  // namespace millwright
