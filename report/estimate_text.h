// SPDX-License-Identifier: Apache-2.0
//
// One plan, costed, as text: what the step takes by item, what each stage holds by item.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/estimator.h"
#include "planner/job.h"
#include "report/text.h"

namespace millwright {

// "tp4 sp pp4 vpp10 dp8 mbs1 zero1 selective(mlp)": degrees of 1 are left out but tp, pp, dp.
std::string BriefName(const ParallelConfig& plan);

// "20", "7,14x8,7 (uneven)": the layers of each pipeline stage in order.
std::string LayersText(const std::vector<int>& layers_per_stage);
std::vector<int> LayersPerStage(const ModelConfig& model, const ParallelConfig& plan);

// What a table calls it; recomputed time holds communication too.
std::string_view Label(TimeItem item);

std::string GiB(Bytes bytes);           // "75.5 GiB", small ones in MiB, "-" for none
std::string FormatRate(double tokens);  // "1,103"
std::string PerStep(Seconds seconds);   // "59.4 s", "-" for none

// The sentence of the result: "59.4 s a step, 1,103 tokens/s/GPU, 50.1% MFU, 75.5 of 79.6 GiB".
std::string ResultSentence(const Estimate& estimate);
// "the activations that it offloads are 251.5 GiB a node, and its hosts have 0.9 GiB".
std::string HostShortage(const Estimate& estimate);
// That, or "stage 0 needs 175.2 GiB, 95.6 GiB more than the 79.6 GiB of an H100-SXM; most of it is
// the optimizer state (98.6 GiB)".
std::string MissSentence(const Estimate& estimate, Bytes limit, const GpuSpec& gpu);

// The question restated: what it is about, and what is asked.
std::vector<std::pair<std::string, std::string>> QuestionRows(const Job& job);
// A labelled line each; `search` says what a search was told besides.
std::string QuestionText(const Job& job, const Style& style, const std::string& search = {});
// Every degree of the plan and its result.
std::string PlanText(const Job& job, const Estimate& estimate, const Style& style);
std::string TimeText(const Estimate& estimate, const Style& style);
std::string MemoryText(const Estimate& estimate, const Style& style);

// `millwright estimate`.
std::string EstimateText(const Job& job, const Estimate& estimate, const Style& style);

}  // namespace millwright
