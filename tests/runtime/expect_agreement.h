// SPDX-License-Identifier: Apache-2.0
//
// A workload on threads against the dense reference: loss, each gradient, and in double the weights
// after three steps of Adam.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/reference.h"
#include "runtime/verification.h"
#include "runtime/workload.h"

namespace millwright {

// Of three steps, by how much of a logit the least decided token has its experts: rounding in
// double is some 1e-13 of one, in float 1e-5.
inline double RoutingMargin(const Workload& workload) {
  Reference reference(workload, false);
  for (int step = 0; step < 3; ++step) reference.ComputeLoss(step);
  return reference.routing_margin();
}

inline RunOutcome RunInThreads(const Workload& workload, const RunOptions& options) {
  RunOutcome outcome;
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    RunOutcome own = RunSteps(workload, options, communicator);
    if (communicator.rank() == 0) outcome = std::move(own);
  });
  return outcome;
}

inline void ExpectAgreement(const Workload& workload, ElementType type = ElementType::kFp64) {
  SCOPED_TRACE(ShortName(workload.parallel) + " " + std::string(workload.schedule.name) + " " +
               std::string(Name(type)));
  ASSERT_EQ(WhyNotExecutable(workload), std::vector<std::string>());
  const bool fp64 = type == ElementType::kFp64;
  const RunOutcome outcome =
      RunInThreads(workload, {.type = type, .steps = fp64 ? 3 : 1, .verify = true});
  ASSERT_EQ(outcome.agreements.size(), fp64 ? 3U : 2U);
  for (const Agreement& agreement : outcome.agreements) {
    EXPECT_TRUE(agreement.holds())
        << agreement.what << ": " << agreement.worst << " is off by " << agreement.error;
  }
  // Losses of three steps; of gradients and weights every tensor of the model.
  EXPECT_EQ(outcome.agreements[0].compared, fp64 ? 3 : 1);
  std::size_t weights = 0;
  for (int layer = -1; layer <= workload.model.num_layers; ++layer) {
    weights += WeightsOf(workload.model, layer).size();
  }
  EXPECT_EQ(outcome.agreements[1].compared, int(weights));
}

}  // namespace millwright
