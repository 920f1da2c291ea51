// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_filter.h"

#include <gtest/gtest.h>

namespace millwright {
namespace {

std::string Mistake(std::string_view text) {
  PlanFilter filter;
  try {
    filter.Require(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(PlanFilter, RequiresAndForbids) {
  PlanFilter filter;
  filter.Require("tp=4|8,sp=on");
  filter.Forbid("zero=3,pp=1");
  EXPECT_TRUE(filter.Allows(Knob::kTp, 8));
  EXPECT_FALSE(filter.Allows(Knob::kTp, 2));
  EXPECT_FALSE(filter.Allows(Knob::kSp, 0));
  EXPECT_TRUE(filter.Allows(Knob::kZero, 1));
  EXPECT_FALSE(filter.Allows(Knob::kZero, 3));
  EXPECT_FALSE(filter.Allows(Knob::kPp, 1));
  EXPECT_TRUE(filter.Allows(Knob::kDp, 77));
  filter.Require("mbs=2");  // as reports name plans
  EXPECT_TRUE(filter.Allows(Knob::kMicroBatch, 2));
  EXPECT_FALSE(filter.Allows(Knob::kMicroBatch, 1));
}

TEST(PlanFilter, RecomputeByGranularityAndByDetail) {
  const Recompute full{.granularity = RecomputeGranularity::kFull};
  const Recompute two{.granularity = RecomputeGranularity::kFull, .full_layers = 2};
  const Recompute mlp{.granularity = RecomputeGranularity::kSelective,
                      .modules = {RecomputeModule::kMlp}};
  PlanFilter any;
  any.Require("recompute=full");
  EXPECT_TRUE(any.Allows(full));
  EXPECT_TRUE(any.Allows(two));
  EXPECT_FALSE(any.Allows(mlp));
  PlanFilter all;
  all.Require("recompute=full(all)");
  EXPECT_TRUE(all.Allows(full));
  EXPECT_FALSE(all.Allows(two));
  PlanFilter exact;
  exact.Require("recompute=full(2)|selective(mlp),tp=1");
  EXPECT_FALSE(exact.Allows(full));
  EXPECT_TRUE(exact.Allows(two));
  EXPECT_TRUE(exact.Allows(mlp));
  PlanFilter order;
  order.Require("recompute=selective(layernorm,core_attn)");
  EXPECT_TRUE(order.Allows(
      Recompute{.granularity = RecomputeGranularity::kSelective,
                .modules = {RecomputeModule::kCoreAttn, RecomputeModule::kLayerNorm}}));
}

TEST(PlanFilter, EveryMistakeInOnePass) {
  EXPECT_EQ(
      Mistake("tp=x,zerp=1,pp,zero=4,recompute=selective(mlq),sp=maybe"),
      "--require: at tp: expected an integer >= 1, got \"x\"\n"
      "--require: unknown knob \"zerp\"; did you mean \"zero\"? accepted: tp, sp, cp, cp_kind, "
      "pp, vpp, dp, ep, etp, micro_batch, zero, zero_shard, recompute, offload, schedule, order, "
      "cp_ulysses\n"
      "--require: expected knob=value, got \"pp\"\n"
      "--require: at zero: expected 0, 1, 2 or 3, got \"4\"\n"
      "--require: at recompute: expected none, selective, full, full(all), full(N) or "
      "selective(MODULE,...), modules core_attn, mlp, moe, moe_act, layernorm, mla_up_proj, "
      "got \"selective(mlq)\"\n"
      "--require: at sp: expected on or off, got \"maybe\"");
  for (const char* bad : {"tp=0", "tp=-1", "tp=99999999999", "tp=1.5", "tp=", "=", "", ",",
                          "recompute=full(0)", "recompute=none(1)", "recompute=full(",
                          "recompute=selective()", "recompute=selective(mlp,mlp)", "tp=1,,pp=2"}) {
    EXPECT_NE(Mistake(bad), "") << bad;
  }
}

}  // namespace
}  // namespace millwright
