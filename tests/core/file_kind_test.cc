// SPDX-License-Identifier: Apache-2.0
#include "core/file_kind.h"

#include <gtest/gtest.h>

#include "core/config_io.h"

namespace millwright {
namespace {

TEST(FileKind, ToldByTheirKeys) {
  const auto kind = [](std::string_view text) { return KindOf("x.json", text); };
  EXPECT_EQ(kind(R"({"model_type": "llama", "num_layers": 2})"), FileKind::kHuggingFace);
  EXPECT_EQ(kind(R"({"num_layers": 2, "hidden_size": 64})"), FileKind::kModel);
  EXPECT_EQ(kind(R"({"inherit": "dgx-h100"})"), FileKind::kCluster);
  EXPECT_EQ(kind(R"({"training": {}, "cluster": {}})"), FileKind::kJob);
  EXPECT_EQ(kind(R"({"executed": {}, "job": {}})"), FileKind::kExecuted);
  EXPECT_EQ(kind(R"({"gpu": "H100-SXM", "provenance": "", "gemm": []})"), FileKind::kCurves);
  EXPECT_EQ(kind(R"({"modle_from": "x"})"), FileKind::kUnknown);
  EXPECT_EQ(kind("[]"), FileKind::kUnknown);
}

std::string Refusal(std::string_view text, FileKind wanted) {
  try {
    RefuseOtherKinds("x.json", text, wanted);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(FileKind, OnlyPlainlyOtherKindsAreRefused) {
  EXPECT_EQ(Refusal(R"({"training": {}})", FileKind::kModel),
            "x.json: is a job file, not a model; give it by itself, without an option");
  EXPECT_EQ(Refusal(R"({"num_layers": 2})", FileKind::kCluster),
            "x.json: is a model, not a cluster; give it with --model");
  // Both are models.
  EXPECT_EQ(Refusal(R"({"model_type": "llama"})", FileKind::kModel), "");
  EXPECT_EQ(Refusal(R"({"colour": "red"})", FileKind::kJob), "");
}

}  // namespace
}  // namespace millwright
