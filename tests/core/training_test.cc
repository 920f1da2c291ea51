// SPDX-License-Identifier: Apache-2.0
#include "core/training.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/read_config.h"

namespace millwright {
namespace {

TEST(Training, RandomConfigsAreWrittenAndReadBackEqual) {
  std::mt19937_64 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto coin = [&] { return below(2) == 1; };
  const auto between = [&](double a, double b) {
    return std::uniform_real_distribution<double>(a, b)(random);
  };
  for (int round = 0; round < 1000; ++round) {
    TrainingConfig t;
    t.global_batch_size = 1 + below(1 << 20);
    t.seq_length = 1 + below(1 << 20);
    t.precision =
        PrecisionNames()[static_cast<std::size_t>(below(static_cast<int>(PrecisionNames().size())))]
            .value;
    t.state = coin() ? StateScheme::kFsdp : StateScheme::kMegatron;
    t.gradient_bytes = between(2, 4);
    t.moment_bytes = between(2, 8);
    t.flash_attention = coin();
    t.bf16_weights = coin();
    t.fused_swiglu = coin();
    t.fp8_activation_store = coin();
    t.fused_cross_entropy = coin();
    t.moe_imbalance = between(1, 10);
    t.overlap_grad_reduce = coin();
    t.overlap_param_gather = coin();
    t.overlap_p2p = coin();
    t.tp_comm_overlap = coin();
    t.cp_comm_overlap = coin();
    t.expert_overlap = coin();
    t.mfu_convention = coin() ? MfuConvention::kFull : MfuConvention::kCausal;
    const std::string text = WriteConfig([&](ConfigIo& io) { Fields(io, t); });
    ASSERT_EQ(Read<TrainingConfig>(text), t) << text;
  }
}

TEST(Training, RangesAreChecked) {
  EXPECT_EQ(
      Complaint<TrainingConfig>(R"({"global_batch_size": 0, "seq_length": -1, "gradient_bytes": 1,
                          "moe_imbalance": 0.5, "precision": "bf61", "state": "megatorn"})"),
      "c.json: at /global_batch_size: expected an integer from 1 to 1073741824, got 0\n"
      "c.json: at /seq_length: expected an integer from 1 to 1073741824, got -1\n"
      "c.json: at /precision: expected one of \"fp16\", \"bf16\", "
      "\"fp8\", \"mxfp8\", \"nvfp4\", got \"bf61\"; did you mean \"bf16\"?\n"
      "c.json: at /state: expected one of \"megatron\", \"fsdp\", got \"megatorn\"; did you "
      "mean \"megatron\"?\n"
      "c.json: at /gradient_bytes: expected a number from 2 to 4, got 1\n"
      "c.json: at /moe_imbalance: expected a number from 1 to 1000, got 0.5");
}

}  // namespace
}  // namespace millwright
