// SPDX-License-Identifier: Apache-2.0
//
// The answer of `millwright plan` as text: the sentence first, then the question, the fastest
// layouts, the best plan by item, what memory costs in time, and what was rejected for what.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/answers.h"
#include "report/export.h"
#include "report/text.h"

namespace millwright {

std::string PlanAnswerText(const PlanAnswer& answer, const Style& style);

// The answer in a sentence or two, of --explain too.
std::string PlanSentence(const PlanAnswer& answer);

// What of the best plan, and of those listed, the framework does not do; a sentence each.
std::vector<std::string> FrameworkNotes(const PlanAnswer& answer);

// Where the framework does not run the best plan, the best that it runs: what to export for it.
std::optional<Substitute> SubstituteOf(const PlanAnswer& answer);

// Why there is no plan, for programs too; empty where there is one.
std::string Reason(const PlanAnswer& answer);
// Why what --explain asks about does not fit or cannot be; empty where it does.
std::string Reason(const Explanation& explanation, const PlanAnswer& answer);

// In which items plans were too large, the most frequent first.
std::vector<MemoryItem> OutOfMemoryItems(const SearchResult& result);

// The parts, for tests.
std::string PlanTable(const std::vector<Contender>& plans, const Style& style);
// How far estimates and simulations are apart, and which plans were left out; empty where nothing
// was simulated.
std::string SimulatedText(const PlanAnswer& answer, const Style& style);
// What is proven of the best plan, and by what.
std::string CertificateText(const PlanAnswer& answer, const Style& style);
// What draws of unlike GPUs make of the best plans; empty where none were asked for.
std::string RobustText(const PlanAnswer& answer, const Style& style);
std::string RejectionText(const SearchResult& result, const Style& style);
// What `plan` loses to `winner`, in one sentence that names the largest causes.
std::string LossSentence(const Contender& plan, const Contender& winner);
// By the estimate, where it loses anything.
std::string LossSentence(const Estimate& plan, const Estimate& winner);

}  // namespace millwright
