// SPDX-License-Identifier: Apache-2.0
#include "report/measure_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/unit_text.h"
#include "cost_models/collectives.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

// One row of the summary: an operation in all its sizes.
struct Kind {
  std::string name;
  int sizes = 0, settled = 0;
  Seconds fastest;
  std::string most;  // its highest rate, in words
  double rate = 0;
};

std::string PassText(GemmPass pass) {
  switch (pass) {
    case GemmPass::kForward:
      return "product, forward";
    case GemmPass::kInputGradient:
      return "product, input gradient";
    case GemmPass::kWeightGradient:
      return "product, weight gradient";
  }
  return {};
}

// The name of a case's kind, its work and the unit that it is in.
struct WorkOf {
  int width;
  struct Work {
    std::string name;
    double amount = 0;
    bool flops = false;
  };
  Work operator()(const GemmCase& g) const {
    return {g.fp8 ? "product, fp8" : PassText(g.pass), 2 * double(g.m) * double(g.n) * double(g.k),
            true};
  }
  Work operator()(const AttentionCase& a) const {
    // Two products forward and five backward over half of the square.
    const double scores = double(a.sequences) * a.heads * double(a.tokens) * double(a.tokens) / 2;
    return {a.backward ? "attention, backward" : "attention, forward",
            (a.backward ? 10 : 4) * scores * double(a.head_size), true};
  }
  Work operator()(const RowsCase& r) const { return {NameOf(r), BytesOf(r, width).value, false}; }
  Work operator()(const CollectiveCase& c) const {
    return {fmt::format("{} among {}", Name(c.kind), c.ranks),
            RingBytesSentFactor(c.kind, c.ranks) * double(c.elements) * width, false};
  }
};

std::vector<Kind> KindsOf(const MeasureAnswer& answer) {
  std::vector<Kind> kinds;
  for (const MeasuredOperationTime& one : answer.measured) {
    const WorkOf::Work work = std::visit(WorkOf{answer.on.width}, one.what);
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const Kind& k) { return k.name == work.name; });
    if (kind == kinds.end()) {
      kinds.push_back({.name = work.name, .fastest = one.timing.sustained});
      kind = kinds.end() - 1;
    }
    ++kind->sizes;
    kind->settled += one.timing.settled ? 1 : 0;
    kind->fastest = std::min(kind->fastest, one.timing.sustained);
    const double rate = work.amount / one.timing.sustained.value;
    if (rate <= kind->rate) continue;
    kind->rate = rate;
    kind->most = work.flops ? fmt::format("{:.3g} GFLOP/s", rate / 1e9)
                            : fmt::format("{:.3g} GB/s", rate / 1e9);
  }
  return kinds;
}

std::string OverlapText(const OverlapTimes& overlap) {
  return fmt::format(
      "A product takes {}, an exchange of {} {}, both together {}: {:.0f}% of the shorter is "
      "hidden.\n",
      FormatSeconds(overlap.product), FormatPayload(Bytes(overlap.bytes)),
      FormatSeconds(overlap.messages), FormatSeconds(overlap.together),
      100 * std::clamp(overlap.hidden(), 0.0, 1.0));
}

}  // namespace

std::string MeasureText(const MeasureAnswer& answer, const Style& style) {
  std::string text =
      fmt::format("Measured {} of {} on {}, {} at a time, in {}: {}.",
                  FormatInteger(std::int64_t(answer.measured.size())),
                  Counted(std::int64_t(answer.cases), "operation"), answer.on.machine,
                  Counted(answer.on.ranks, "rank"), answer.on.dtype, FormatSeconds(answer.seconds));
  if (answer.interrupted) {
    text += answer.measured.empty() ? " Interrupted before anything was measured."
                                    : " Interrupted; what was measured until then is kept.";
  }
  if (!answer.on.attention_by.empty()) {
    text += fmt::format(" Attention by {}.", answer.on.attention_by);
  }
  text = Bold(Wrapped(text, style.width, 0), style) + "\n\n";
  TextTable table;
  table.Column("operation", Align::kLeft);
  for (const char* title : {"sizes", "settled", "fastest", "most"}) table.Column(title);
  for (const Kind& kind : KindsOf(answer)) {
    table.Row({kind.name, std::to_string(kind.sizes), std::to_string(kind.settled),
               FormatSeconds(kind.fastest), kind.most});
  }
  text += table.Text(style);
  text += "\n";
  if (answer.overlap) text += Wrapped(OverlapText(*answer.overlap), style.width, 0);
  for (const std::string& file : answer.files) text += "  " + file + "\n";
  return text;
}

std::string MeasureJson(const MeasureAnswer& answer) {
  Json rows = Json::array();
  for (const MeasuredOperationTime& one : answer.measured) {
    const Measurement row = RowOf(one.what, one.timing, false, answer.on);
    rows.push_back({{"table", std::string(row.table())},
                    {"operation", std::visit(WorkOf{answer.on.width}, one.what).name},
                    {"shape", ShapeText(row.operation)},
                    {"time_s", one.timing.sustained.value},
                    {"burst_s", one.timing.burst.value},
                    {"spread", one.timing.spread},
                    {"repeats", one.timing.repeats},
                    {"settled", one.timing.settled}});
  }
  Json timing{{"measure_s", answer.seconds.value}, {"rows", std::move(rows)}};
  if (answer.overlap) {
    timing["overlap"] = {{"product_s", answer.overlap->product.value},
                         {"messages_s", answer.overlap->messages.value},
                         {"together_s", answer.overlap->together.value},
                         {"message_bytes", answer.overlap->bytes},
                         {"hidden", answer.overlap->hidden()}};
  }
  Json all{{"gpu", answer.on.gpu},
           {"machine", answer.on.machine},
           {"ranks", answer.on.ranks},
           {"dtype", answer.on.dtype},
           {"library", answer.on.library},
           {"cases", answer.cases},
           {"interrupted", answer.interrupted},
           {"files", answer.files},
           {"timing", std::move(timing)}};
  if (!answer.on.attention_by.empty()) all["attention_by"] = answer.on.attention_by;
  return all.dump(2) + "\n";
}

}  // namespace millwright
