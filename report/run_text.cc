// SPDX-License-Identifier: Apache-2.0
#include "report/run_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/unit_text.h"
#include "report/estimate_text.h"
#include "report/executed_report.h"

namespace millwright {
namespace {

std::string_view InBrackets(RunBackend backend) {
  switch (backend) {
    case RunBackend::kMpi:
      return "(MPI)";
    case RunBackend::kThreads:
      return "(threads)";
    case RunBackend::kCuda:
      return "(CUDA)";
  }
  return "";
}

std::string Sentence(const RunAnswer& answer) {
  const RunOutcome& outcome = answer.outcome;
  const ParallelConfig& plan = answer.job.parallel;
  std::string text =
      fmt::format("Executed {} under {} on {} {} in {}{}: {}, loss {:.6f}", ShortName(plan),
                  NameOf(plan.schedule), Counted(std::int64_t(plan.gpus()), "rank"),
                  InBrackets(answer.backend), Name(answer.options.type),
                  answer.job.training.precision == Precision::kFp8 ? ", linear layers in fp8" : "",
                  Counted(answer.options.steps, "step"), outcome.losses.front());
  if (outcome.losses.size() > 1) text += fmt::format(" to {:.6f}", outcome.losses.back());
  text += fmt::format(", {} a step.", FormatSeconds(outcome.seconds.back()));
  if (!outcome.attention_by.empty()) {
    text += fmt::format(" Attention by {}.", outcome.attention_by);
  }
  if (!answer.options.verify) return text + " Not verified (--verify).";
  return text + (outcome.holds() ? " Equal to the dense reference on one rank."
                                 : " NOT EQUAL to the dense reference on one rank.");
}

std::string AgreementTable(const RunOutcome& outcome, const Style& style) {
  TextTable table;
  table.Column("Compared", Align::kLeft);
  table.Column("tensors");
  table.Column("elements");
  table.Column("max|a-b|/max|b|");
  table.Column("limit");
  table.Column("");
  table.Column("worst", Align::kLeft);
  for (const Agreement& agreement : outcome.agreements) {
    table.Row({agreement.what, FormatInteger(agreement.compared), FormatInteger(agreement.elements),
               fmt::format("{:.1e}", agreement.error), fmt::format("{:.0e}", agreement.limit),
               agreement.holds() ? "ok" : "WRONG", agreement.worst});
  }
  return table.Text(style);
}

std::string SentTable(const RunOutcome& outcome, const Style& style) {
  TextTable table;
  table.Column("Sent in a step, by all ranks", Align::kLeft);
  table.Column("kind", Align::kLeft);
  table.Column("calls");
  table.Column("bytes");
  for (const SentBytes& sent : outcome.sent) {
    table.Row({sent.name, std::string(Name(sent.kind)), FormatInteger(sent.calls),
               FormatPayload(Bytes(double(sent.bytes)))});
  }
  return table.Text(style);
}

std::string RanksTable(const RunAnswer& answer, const Style& style) {
  const RunOutcome& outcome = answer.outcome;
  constexpr std::size_t kMost = 16;
  TextTable table;
  table.Column("Rank");
  table.Column("sent");
  table.Column("tensors, peak");
  table.Column(answer.backend == RunBackend::kThreads ? "process of all, peak" : "process, peak");
  table.Column("in operators");
  table.Column("step");
  for (std::size_t i = 0; i < std::min(outcome.ranks.size(), kMost); ++i) {
    const RankOfRun& rank = outcome.ranks[i];
    table.Row({std::to_string(rank.rank), FormatPayload(Bytes(double(rank.sent))),
               FormatPayload(Bytes(double(rank.peak))),
               rank.resident > 0 ? FormatPayload(Bytes(double(rank.resident))) : "",
               FormatSeconds(rank.busy), FormatSeconds(rank.step)});
  }
  std::string text = table.Text(style);
  if (outcome.ranks.size() > kMost) {
    text += fmt::format("  and {} more ranks\n", outcome.ranks.size() - kMost);
  }
  return text;
}

}  // namespace

std::string RunText(const RunAnswer& answer, const Style& style) {
  std::string text = Bold(Wrapped(Sentence(answer), style.width, 0), style) + "\n\n" +
                     QuestionText(answer.job, style);
  if (answer.options.verify) text += "\n" + AgreementTable(answer.outcome, style);
  if (!answer.outcome.sent.empty()) text += "\n" + SentTable(answer.outcome, style);
  text += "\n" + RanksTable(answer, style);
  if (answer.compared) text += "\n" + ExecutedComparisonText(*answer.compared, style);
  return text;
}

}  // namespace millwright
