// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_filter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/config_io.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

struct KnobSpelling {
  Knob knob;
  std::string_view name;
};
constexpr KnobSpelling kKnobs[] = {
    {Knob::kTp, "tp"},
    {Knob::kSp, "sp"},
    {Knob::kCp, "cp"},
    {Knob::kCpKind, "cp_kind"},
    {Knob::kPp, "pp"},
    {Knob::kVpp, "vpp"},
    {Knob::kDp, "dp"},
    {Knob::kEp, "ep"},
    {Knob::kEtp, "etp"},
    {Knob::kMicroBatch, "micro_batch"},
    {Knob::kZero, "zero"},
    {Knob::kZeroShard, "zero_shard"},
    {Knob::kRecompute, "recompute"},
    {Knob::kOffload, "offload"},
    {Knob::kSchedule, "schedule"},
    {Knob::kOrder, "order"},
    {Knob::kCpUlysses, "cp_ulysses"},
};

// Splits at `separator` outside parentheses.
std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) {
      if (text[i] == '(') ++depth;
      if (text[i] == ')') --depth;
      if (text[i] != separator || depth > 0) continue;
    }
    parts.push_back(text.substr(start, i - start));
    start = i + 1;
  }
  return parts;
}

std::optional<int> ParseInt(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

template <class E>
std::optional<int> ParseName(std::string_view text, std::span<const EnumName<E>> names) {
  for (const auto& n : names) {
    if (n.name == text) return static_cast<int>(n.value);
  }
  return {};
}

std::optional<int> ParseSwitch(std::string_view text) {
  for (std::string_view yes : {"1", "on", "true", "yes"}) {
    if (text == yes) return 1;
  }
  for (std::string_view no : {"0", "off", "false", "no"}) {
    if (text == no) return 0;
  }
  return {};
}

std::string_view AcceptedValues(Knob knob) {
  switch (knob) {
    case Knob::kSp:
      return "on or off";
    case Knob::kCpKind:
      return "ring, ulysses or nested";
    case Knob::kZero:
      return "0, 1, 2 or 3";
    case Knob::kZeroShard:
    case Knob::kOffload:
    case Knob::kCpUlysses:
      return "an integer >= 0";
    case Knob::kRecompute:
      return "none, selective, full, full(all), full(N) or selective(MODULE,...), modules "
             "core_attn, mlp, "
             "moe, moe_act, layernorm, mla_up_proj";
    case Knob::kSchedule:
      return "gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, v-zb, dualpipe, "
             "dualpipe-v or bfs";
    case Knob::kOrder:
      return "tp-cp-ep-dp-pp or tp-cp-ep-pp-dp";
    case Knob::kTp:
    case Knob::kCp:
    case Knob::kPp:
    case Knob::kVpp:
    case Knob::kDp:
    case Knob::kEp:
    case Knob::kEtp:
    case Knob::kMicroBatch:
      return "an integer >= 1";
  }
  return {};
}

// Of what reports write of a plan and filters take otherwise: offloaded layers, and recomputation
// by rank, 2xfull(3).
std::string_view HintOn(Knob knob, std::string_view value) {
  if (knob != Knob::kRecompute) return "";
  if (value.find("offload(") != std::string_view::npos) {
    return "; offloaded layers are a knob of their own: offload=2";
  }
  const std::size_t digits = std::min(value.find_first_not_of("0123456789"), value.size());
  if (digits == 0 || !value.substr(digits).starts_with('x')) return "";
  return "; | stands between values of which each is allowed, on any rank: what becomes of a "
         "choice "
         "for each rank says estimate --rank-recompute";
}

std::optional<int> ParseValue(Knob knob, std::string_view text) {
  switch (knob) {
    case Knob::kSp:
      return ParseSwitch(text);
    case Knob::kCpKind:
      return ParseName<ContextParallelKind>(text, ContextParallelKindNames());
    case Knob::kSchedule:
      return ParseName<ScheduleKind>(text, TrainingScheduleNames());
    case Knob::kOrder:
      return ParseName<RankOrder>(text, RankOrderNames());
    case Knob::kRecompute:
      return {};
    default:
      break;
  }
  const auto value = ParseInt(text);
  if (!value) return {};
  const bool from_zero = knob == Knob::kZero || knob == Knob::kZeroShard ||
                         knob == Knob::kOffload || knob == Knob::kCpUlysses;
  const int min = from_zero ? 0 : 1;
  const int max = knob == Knob::kZero ? 3 : 1 << 30;
  if (*value < min || *value > max) return {};
  return value;
}

}  // namespace

std::optional<Recompute> ParseRecompute(std::string_view text, bool& any) {
  const std::size_t open = text.find('(');
  any = open == std::string_view::npos;
  const auto granularity =
      ParseName<RecomputeGranularity>(text.substr(0, open), RecomputeGranularityNames());
  if (!granularity) return {};
  Recompute recompute{.granularity = static_cast<RecomputeGranularity>(*granularity),
                      .modules = {}};
  if (any) return recompute;
  if (text.back() != ')') return {};
  const std::string_view inside = text.substr(open + 1, text.size() - open - 2);
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone:
      return {};
    case RecomputeGranularity::kFull: {
      if (inside == "all") break;
      const auto layers = ParseInt(inside);
      if (!layers || *layers < 1) return {};
      recompute.full_layers = *layers;
      break;
    }
    case RecomputeGranularity::kSelective:
      for (std::string_view name : Split(inside, ',')) {
        const auto module = ParseName<RecomputeModule>(name, RecomputeModuleNames());
        if (!module) return {};
        const auto m = static_cast<RecomputeModule>(*module);
        if (std::count(recompute.modules.begin(), recompute.modules.end(), m)) return {};
        recompute.modules.push_back(m);
      }
      std::sort(recompute.modules.begin(), recompute.modules.end());
      break;
  }
  return recompute;
}

std::vector<std::string_view> KnobNames() {
  std::vector<std::string_view> names;
  for (const KnobSpelling& k : kKnobs) names.push_back(k.name);
  return names;
}

void PlanFilter::Require(std::string_view text, std::string_view option) {
  Add(false, text, option);
}
void PlanFilter::Forbid(std::string_view text, std::string_view option) { Add(true, text, option); }

void PlanFilter::Add(bool forbid, std::string_view text, std::string_view option) {
  constexpr std::size_t kMost = kMostNameShown;
  const std::string where = option.empty() ? "" : fmt::format("{}: ", option);
  std::vector<std::string> problems;
  for (std::string_view part : Split(text, ',')) {
    const std::size_t equals = part.find('=');
    std::string name(part.substr(0, equals));
    std::replace(name.begin(), name.end(), '-', '_');  // as flags are spelled
    if (name == "mbs") name = "micro_batch";           //   and as plans are named
    const auto knob = std::find_if(std::begin(kKnobs), std::end(kKnobs),
                                   [&](const KnobSpelling& k) { return k.name == name; });
    if (equals == std::string_view::npos) {
      problems.push_back(
          fmt::format("{}expected knob=value, got \"{}\"", where, Printable(part, kMost)));
      continue;
    }
    if (knob == std::end(kKnobs)) {
      const std::vector<std::string_view> names = KnobNames();
      const std::string_view nearest = NearestName(name, names);
      problems.push_back(
          fmt::format("{}unknown knob \"{}\"; {}accepted: {}", where, Printable(name, kMost),
                      nearest.empty() ? "" : fmt::format("did you mean \"{}\"? ", nearest),
                      fmt::join(names, ", ")));
      continue;
    }
    Term term{.forbid = forbid,
              .knob = knob->knob,
              .values = {},
              .recomputes = {},
              .any = {},
              .written = fmt::format("{} {}", option, part)};
    for (std::string_view value : Split(part.substr(equals + 1), '|')) {
      if (term.knob == Knob::kRecompute) {
        bool any = false;
        if (const auto recompute = ParseRecompute(value, any)) {
          term.recomputes.push_back(*recompute);
          term.any.push_back(any);
          continue;
        }
      } else if (const auto number = ParseValue(term.knob, value)) {
        term.values.push_back(*number);
        continue;
      }
      problems.push_back(fmt::format("{}at {}: expected {}, got \"{}\"{}", where, name,
                                     AcceptedValues(term.knob), Printable(value, kMost),
                                     HintOn(term.knob, value)));
    }
    terms_.push_back(std::move(term));
  }
  if (!problems.empty()) throw ConfigError(fmt::format("{}", fmt::join(problems, "\n")));
}

bool PlanFilter::Allows(Knob knob, int value) const {
  for (const Term& term : terms_) {
    if (term.knob != knob) continue;
    const bool listed =
        std::find(term.values.begin(), term.values.end(), value) != term.values.end();
    if (listed == term.forbid) return false;
  }
  return true;
}

bool PlanFilter::Allows(const Recompute& of_plan) const {
  Recompute recompute = of_plan;
  recompute.offload_layers = 0;
  for (const Term& term : terms_) {
    if (term.knob != Knob::kRecompute) continue;
    bool listed = false;
    for (std::size_t i = 0; i < term.recomputes.size(); ++i) {
      listed = listed || (term.any[i] ? term.recomputes[i].granularity == recompute.granularity
                                      : term.recomputes[i] == recompute);
    }
    if (listed == term.forbid) return false;
  }
  return true;
}

PlanFilter::OfKnob PlanFilter::About(Knob knob) const {
  OfKnob about;
  const auto add = [](auto& list, const auto& value, bool allowed) {
    if (allowed && std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
  };
  for (const Term& term : terms_) {
    if (term.knob != knob) continue;
    about.written += fmt::format("{}{}", about.terms == 0 ? "" : " and ", term.written);
    ++about.terms;
    if (term.forbid) continue;
    about.required = true;
    for (int value : term.values) add(about.values, value, Allows(knob, value));
    for (const Recompute& r : term.recomputes) add(about.recomputes, r, Allows(r));
  }
  return about;
}

bool PlanFilter::Allows(const ParallelConfig& p) const {
  const std::vector<Recompute> recomputes = p.Recomputes();
  return Allows(Knob::kTp, p.tensor) && Allows(Knob::kSp, p.sequence_parallel ? 1 : 0) &&
         Allows(Knob::kCp, p.context) && Allows(Knob::kCpKind, static_cast<int>(p.context_kind)) &&
         Allows(Knob::kPp, p.pipeline) && Allows(Knob::kVpp, p.virtual_stages) &&
         Allows(Knob::kDp, p.data) && Allows(Knob::kEp, p.expert) &&
         Allows(Knob::kEtp, p.expert_tensor) && Allows(Knob::kMicroBatch, p.micro_batch_size) &&
         Allows(Knob::kZero, p.zero) && Allows(Knob::kZeroShard, p.zero_shard) &&
         Allows(Knob::kSchedule, static_cast<int>(p.schedule)) &&
         Allows(Knob::kOrder, static_cast<int>(p.order)) &&
         Allows(Knob::kCpUlysses, p.context_ulysses) &&
         std::all_of(recomputes.begin(), recomputes.end(), [&](const Recompute& r) {
           return Allows(r) && Allows(Knob::kOffload, r.offload_layers);
         });
}

}  // namespace millwright
