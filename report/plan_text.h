// The answer of `millwright plan` as text: the sentence first, then the question, the fastest
// layouts, the best plan by item, what memory costs in time, and what was rejected for what.
#pragma once

#include <string>

#include "report/answers.h"
#include "report/text.h"

namespace millwright {

std::string PlanAnswerText(const PlanAnswer& answer, const Style& style);

// The parts, for tests.
std::string PlanTable(const std::vector<Estimate>& plans, const Style& style);
std::string RejectionText(const SearchResult& result, const Style& style);
// What `plan` loses to `winner`, in one sentence that names the largest causes.
std::string LossSentence(const Estimate& plan, const Estimate& winner);

}  // namespace millwright
