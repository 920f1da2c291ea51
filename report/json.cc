// SPDX-License-Identifier: Apache-2.0
#include "report/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/parameters.h"
#include "cost_models/calibration.h"
#include "cost_models/interval.h"
#include "report/estimate_text.h"
#include "report/executed_report.h"
#include "report/plan_text.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

std::string Key(std::string_view key) { return std::string(key); }

Json ToJson(const ParallelConfig& p) {
  return {{"tp", p.tensor},
          {"sp", p.sequence_parallel},
          {"cp", p.context},
          {"cp_kind", NameIn(ContextParallelKindNames(), p.context_kind)},
          {"cp_ulysses", p.context_ulysses},
          {"pp", p.pipeline},
          {"vpp", p.virtual_stages},
          {"dp", p.data},
          {"ep", p.expert},
          {"etp", p.expert_tensor},
          {"micro_batch", p.micro_batch_size},
          {"zero", p.zero},
          {"zero_shard", p.zero_shard},
          {"recompute", RecomputeName(p)},
          {"schedule", std::string(NameOf(p.schedule))},
          {"stage_layers", p.stage_layers},
          {"order", NameIn(RankOrderNames(), p.order)}};
}

// A plan that can run.
Json ToJson(const ParallelConfig& p, const ModelConfig& model) {
  Json json = ToJson(p);
  json["layers_per_stage"] = LayersPerStage(model, p);
  return json;
}

Json HostCapacity(const Estimate& e) {
  return e.host_capacity > Bytes(0) ? Json(e.host_capacity.value) : Json(nullptr);
}

Json ToJson(const Estimate& e, const Job& job, Bytes limit) {
  Json time, stages = Json::array();
  for (int i = 0; i < kTimeItems; ++i) {
    const auto item = static_cast<TimeItem>(i);
    time[Key(JsonKey(item))] = e.time[item].value;
  }
  time["total"] = e.step.value;
  Bytes allocated;
  for (const StageMemory& stage : e.memory) {
    Json one = {{"stage", stage.stage}, {"total_bytes", stage.total().value}};
    for (int i = 0; i < kMemoryItems; ++i) {
      const auto item = static_cast<MemoryItem>(i);
      one[Key(JsonKey(item))] = stage[item].value;
    }
    stages.push_back(std::move(one));
    allocated = std::max(allocated, stage.allocated());
  }
  const RunClass kind = ClassOf(job.model, job.training, job.cluster.gpu);
  const Interval step = StepInterval(kind), memory = MemoryInterval();
  return {{"step_time_s", e.step.value},
          {"interval",
           {{"low", step.low * e.step.value},
            {"high", step.high * e.step.value},
            {"memory_low_bytes", memory.low * e.peak.value},
            {"memory_high_bytes", memory.high * e.peak.value},
            {"of", std::string(Name(kind))}}},
          {"tokens_per_s_per_gpu", e.tokens_per_second_per_gpu},
          {"model_tflops_per_gpu", e.model_flops_per_gpu.value / 1e12},
          {"mfu", e.mfu},
          {"hfu", e.hfu},
          {"ideal_time_s", e.mfu * e.step.value},
          {"mfu_convention", NameIn(MfuConventionNames(), job.training.mfu_convention)},
          {"fits", e.FitsIn(limit)},
          {"plan", ToJson(e.plan, job.model)},
          {"micro_batches", e.micro_batches},
          {"slowest_stage", e.slowest_stage},
          {"time", std::move(time)},
          {"memory",
           {{"peak_bytes", e.peak.value},
            {"capacity_bytes", e.capacity.value},
            {"peak_stage", e.peak_stage},
            {"largest_item", Key(JsonKey(e.memory[std::size_t(e.peak_stage)].largest()))},
            {"allocated_bytes", allocated.value},
            {"host_bytes_a_node", e.host.value},
            {"host_capacity_bytes_a_node", HostCapacity(e)},
            {"stages", std::move(stages)}}}};
}

// The estimate's figures, and those of the simulation beside them.
Json ToJson(const Contender& c, const Job& job, Bytes limit) {
  Json json = ToJson(c.estimate, job, limit);
  json["simulated_step_time_s"] = nullptr;
  json["simulated_peak_bytes"] = nullptr;
  json["simulated_fits"] = nullptr;
  json["estimate_error"] = nullptr;
  if (c.simulated) {
    json["simulated_step_time_s"] = c.simulated->step.value;
    json["simulated_peak_bytes"] = c.simulated->peak.value;
    json["simulated_fits"] = c.simulated->peak <= limit;
    json["estimate_error"] = c.difference();
  }
  return json;
}

template <class Each>
Json ToArray(const auto& items, const Each& each) {
  Json array = Json::array();
  for (const auto& item : items) array.push_back(each(item));
  return array;
}

Json ModelJson(const ModelConfig& model) {
  const ParameterCount parameters = CountParameters(model);
  return {{"name", model.name},
          {"parameters", {{"total", parameters.total}, {"active", parameters.active}}}};
}

Json QuestionJson(const Job& job) {
  TrainingConfig training = job.training;
  const Calibration& calibration = CalibrationFor(job.cluster.gpu);
  return {{"model", ModelJson(job.model)},
          {"cluster",
           {{"name", job.cluster.name},
            {"nodes", job.cluster.nodes},
            {"gpus", job.cluster.gpus()},
            {"gpu", job.cluster.gpu.name}}},
          {"calibration",
           {{"name", Key(calibration.name)},
            {"source", Key(calibration.source)},
            {"file", job.cluster.gpu.calibration_file},
            {"measured", job.cluster.gpu.measured()}}},
          {"training", Json::parse(WriteConfig([&](ConfigIo& io) { Fields(io, training); }))}};
}

Json Counts(const SearchResult& result, const ModelConfig& model) {
  Json rejected = Json::object(), out_of_memory = Json::array();
  for (int i = 0; i < kRejectionReasons; ++i) {
    const std::int64_t count = result.rejected[std::size_t(i)];
    if (count > 0) rejected[Key(JsonKey(static_cast<RejectionReason>(i)))] = count;
  }
  for (MemoryItem item : OutOfMemoryItems(result)) {
    const OutOfMemory& of_item = result.out_of_memory[static_cast<std::size_t>(item)];
    Json one{{"item", Key(JsonKey(item))},
             {"count", of_item.count},
             {"least_over_bytes", nullptr},
             {"stage", nullptr},
             {"plan", nullptr}};
    if (of_item.nearest) {
      one["least_over_bytes"] = (of_item.nearest->peak - result.memory_limit).value;
      one["stage"] = of_item.stage;
      one["plan"] = ToJson(of_item.nearest->plan, model);
    }
    out_of_memory.push_back(std::move(one));
  }
  return {{"searched", result.searched},
          {"rejected", std::move(rejected)},
          {"out_of_memory", std::move(out_of_memory)}};
}

Json ToJson(const Certificate& c) {
  Json pruned = Json::object();
  for (std::size_t i = 0; i < kBounds; ++i) {
    if (c.ruled_out[i] > 0) pruned[Key(JsonKey(static_cast<Bound>(i)))] = c.ruled_out[i];
  }
  Json json = {
      {"exact", c.exact()},
      {"best_bound_s", std::isfinite(c.best_bound.value) ? Json(c.best_bound.value) : Json()},
      {"gap", c.gap},
      {"space", c.space},
      {"costed", c.costed},
      {"unvisited", c.unvisited},
      {"pruned", std::move(pruned)}};
  if (c.by_rank > 0 || c.not_by_rank > 0)
    json["by_rank"] = {{"plans", c.by_rank}, {"faster", c.faster_by_rank}};
  if (c.undivided > 0 || c.not_by_rank > 0) {
    json["no_time"] = {{"layers", c.undivided}, {"by_rank", c.not_by_rank}};
  }
  return json;
}

// Its numbers are measured, or predicted from what was measured.
Json ToJson(const ExecutedComparison& comparison) {
  Json streams = Json::array(), operators = Json::array();
  for (const ComparedStream& one : comparison.streams) {
    streams.push_back({{"stream", one.name},
                       {"predicted_s", one.predicted.value},
                       {"measured_s", one.measured.value},
                       {"processor_s", one.processor.value}});
  }
  for (const ComparedOperator& one : comparison.operators) {
    operators.push_back({{"operator", one.name},
                         {"pass", one.backward ? "backward" : "forward"},
                         {"calls", one.calls},
                         {"predicted_s", one.predicted.value},
                         {"measured_s", one.measured.value},
                         {"processor_s", one.processor.value}});
  }
  return {{"predicted_s", comparison.predicted.value},
          {"measured_s", comparison.measured.value},
          {"error", comparison.error()},
          {"processor_s", comparison.processor.value},
          {"streams", std::move(streams)},
          {"operators", std::move(operators)}};
}

Json ToJson(const Exported& exported) {
  Json files = Json::array(), unexpressed = Json::array();
  for (const ExportedFile& file : exported.files) files.push_back(file.name);
  for (const Unexpressed& u : exported.unexpressed) {
    unexpressed.push_back(
        {{"format", NameIn(ExportFormatNames(), u.format)}, {"field", u.field}, {"why", u.why}});
  }
  return {{"files", std::move(files)}, {"unexpressed", std::move(unexpressed)}};
}

Json ToJson(const SensitivityAnswer& answer, const ModelConfig& model) {
  const auto plan = [&](const std::optional<RankedPlan>& p) {
    if (!p) return Json(nullptr);
    return Json{{"step_time_s", p->step.value},
                {"peak_bytes", p->peak.value},
                {"plan", ToJson(p->plan, model)}};
  };
  Json resources = Json::array();
  for (const Sensitivity& s : answer.resources) {
    resources.push_back(
        {{"name", s.name}, {"value", s.value}, {"more", plan(s.more)}, {"less", plan(s.less)}});
  }
  return {{"step", kSensitivityStep},
          {"estimate_step_time_s", answer.now.step.value},
          {"resources", std::move(resources)},
          {"options", ToArray(answer.options, [&](const OptionSensitivity& option) {
             return Json{{"flag", option.flag},
                         {"time_per_token_change", answer.Change(option)},
                         {"best", plan(option.best)}};
           })}};
}

Json ToJson(const SizeAnswer& answer, const ModelConfig& model) {
  const SizeQuestion& q = answer.question;
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  Json sizes = Json::array();
  for (const ClusterSize& size : answer.sizes) {
    const auto of = [&](bool asked, const auto& value) {
      return size.best && asked ? Json(value()) : Json(nullptr);
    };
    sizes.push_back(
        {{"nodes", size.nodes},
         {"gpus", size.gpus},
         {"fits", size.best.has_value()},
         {"reason", size.best ? Json(nullptr) : Json(size.reason)},
         {"step_time_s", of(true, [&] { return size.best->step().value; })},
         {"high_s", of(size.high.has_value(), [&] { return size.high->value; })},
         {"tokens_per_s", of(true, [&] { return answer.TokensPerSecond(size); })},
         {"gpu_hours_per_m_tokens", of(true, [&] { return 1e6 * answer.GpuHoursPerToken(size); })},
         {"time_s", of(q.tokens.has_value(), [&] { return answer.TimeOf(size).value; })},
         {"usd", of(q.tokens && q.price, [&] { return answer.UsdOf(size); })},
         {"tokens_per_usd",
          of(q.price.has_value(), [&] { return 1 / (*q.price * answer.GpuHoursPerToken(size)); })},
         {"meets_deadline", of(q.deadline.has_value(), [&] { return answer.Meets(size); })},
         {"plan", of(true, [&] { return ToJson(size.best->estimate.plan, model); })},
         {"options", of(!size.options.empty(), [&] { return size.options; })}});
  }
  return {{"chosen_nodes", answer.met ? Json(answer.sizes[answer.chosen].nodes) : Json(nullptr)},
          {"tokens", or_null(q.tokens)},
          {"deadline_s", q.deadline ? Json(q.deadline->value) : Json(nullptr)},
          {"usd_per_gpu_hour", or_null(q.price)},
          {"sizes", std::move(sizes)}};
}

Json ToJson(const OptionsAnswer& answer, const ModelConfig& model) {
  Json choices = Json::array();
  for (std::size_t i = 0; i < answer.choices.size(); ++i) {
    const OptionsAnswer::Choice& choice = answer.choices[i];
    const std::vector<std::string> at = SweepPoint(answer.axes, i);
    Json options = Json::object();
    for (std::size_t axis = 0; axis < at.size(); ++axis) options[answer.axes[axis].name] = at[axis];
    const auto of = [&](const auto& value) {
      return choice.best ? Json(value(*choice.best)) : Json(nullptr);
    };
    choices.push_back(
        {{"options", std::move(options)},
         {"fits", choice.best.has_value()},
         {"reason", choice.best ? Json(nullptr) : Json(choice.reason)},
         {"step_time_s", of([](const Contender& c) { return c.step().value; })},
         {"high_s", choice.high ? Json(choice.high->value) : Json(nullptr)},
         {"peak_bytes", of([](const Contender& c) { return c.peak().value; })},
         {"plan", of([&](const Contender& c) { return ToJson(c.estimate.plan, model); })}});
  }
  return {{"chosen", answer.choices[answer.chosen].best ? Json(answer.chosen) : Json(nullptr)},
          {"choices", std::move(choices)}};
}

Json ToJson(const RobustAnswer& answer) {
  Json plans = Json::array();
  for (const std::optional<RobustCost>& cost : answer.costs) {
    plans.push_back(cost ? Json{{"median_s", cost->median.value},
                                {"p95_s", cost->p95.value},
                                {"high_s", cost->high.value}}
                         : Json(nullptr));
  }
  return {{"gpu_jitter", answer.options.gpu_jitter},
          {"slow", answer.options.slow_names},
          {"seed", answer.options.seed},
          {"draws", answer.options.draws},
          {"interval_high", answer.interval_high},
          {"plans", std::move(plans)}};
}

// Names come from files, and files may hold anything: what is not UTF-8 is replaced.
std::string Dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace

std::string PlanAnswerJson(const PlanAnswer& answer) {
  const Bytes limit = answer.result.memory_limit;
  const auto estimate = [&](const Estimate& e) { return ToJson(e, answer.job, limit); };
  const auto contender = [&](const Contender& c) { return ToJson(c, answer.job, limit); };
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  // The best plan's own fields stand at the top, as those of `estimate` do.
  Json json = answer.plans().empty() ? Json::object() : contender(answer.plans().front());
  json["question"] = QuestionJson(answer.job);
  json["question"]["objective"] = NameIn(ObjectiveNames(), answer.objective);
  json["question"]["memory_margin"] = answer.job.search.memory_margin;
  json["question"]["offload"] = answer.job.search.offload;
  json["question"]["recompute_by_rank"] = answer.job.search.recompute_by_rank;
  json["question"]["require"] = answer.job.search.require;
  json["question"]["forbid"] = answer.job.search.forbid;
  json["warnings"] = answer.warnings;
  json["fits"] = !answer.plans().empty();
  json["memory_limit_bytes"] = limit.value;
  json["plans"] = ToArray(answer.plans(), contender);
  const Contenders& contenders = answer.contenders;
  json["simulation"] = {{"simulated", contenders.simulated},
                        {"too_large", contenders.too_large},
                        {"too_late", contenders.too_late},
                        {"median_error", contenders.median_difference},
                        {"largest_error", contenders.largest_difference},
                        {"none_fits", contenders.none_fits_simulated},
                        {"left_out", ToArray(contenders.left_out, contender)}};
  json["in_framework"] = answer.in_framework ? contender(*answer.in_framework) : Json(nullptr);
  json["framework_notes"] = FrameworkNotes(answer);
  json["pareto"] = ToArray(answer.pareto, estimate);
  json["certificate"] = ToJson(answer.result.certificate);
  json.update(Counts(answer.result, answer.job.model));
  json["reason"] = text_or_null(Reason(answer));
  json["nearest_miss"] = answer.nearest_miss ? estimate(*answer.nearest_miss) : Json(nullptr);
  json["remedies"] = ToArray(answer.remedies, [&](const Remedy& r) {
    return Json{{"change", r.change},
                {"plan", ToJson(r.plan.plan, answer.job.model)},
                {"step_time_s", r.plan.step.value},
                {"peak_bytes", r.plan.peak.value}};
  });
  if (answer.explanation) {
    const Explanation& x = *answer.explanation;
    Json one = {{"asked", x.asked},
                {"fits", x.fits},
                {"reason", text_or_null(Reason(x, answer))},
                {"estimate", x.plan ? contender(*x.plan) : Json(nullptr)}};
    if (x.plan && !answer.plans().empty()) {
      const Estimate& plan = x.plan->estimate;
      const Estimate& best = answer.plans().front().estimate;
      Json lost;
      for (int i = 0; i < kTimeItems; ++i) {
        const auto item = static_cast<TimeItem>(i);
        lost[Key(JsonKey(item))] = (plan.time[item] - best.time[item]).value;
      }
      lost["total"] = (plan.step - best.step).value;
      one["lost_to_best_s"] = std::move(lost);
    }
    one.update(Counts(x.result, answer.job.model));
    json["explain"] = std::move(one);
  }
  if (answer.sizes) json["sizes"] = ToJson(*answer.sizes, answer.job.model);
  if (answer.options) json["options"] = ToJson(*answer.options, answer.job.model);
  if (answer.robust) json["robust"] = ToJson(*answer.robust);
  if (answer.exported) json["export"] = ToJson(*answer.exported);
  if (answer.sensitivity) json["sensitivity"] = ToJson(*answer.sensitivity, answer.job.model);
  json["timing"] = {{"search_s", answer.search_seconds},
                    {"simulate_s", answer.simulate_seconds},
                    {"threads", answer.threads}};
  return Dump(json);
}

std::string EstimateJson(const Job& job, const Estimate& e,
                         const std::vector<std::string>& warnings,
                         const std::optional<Exported>& exported) {
  Json json = ToJson(e, job, e.capacity);
  json["question"] = QuestionJson(job);
  json["warnings"] = warnings;
  if (exported) json["export"] = ToJson(*exported);
  return Dump(json);
}

std::string RejectedEstimateJson(const Job& job, const Rejection& rejection,
                                 const std::vector<std::string>& warnings) {
  return Dump({{"fits", false},
               {"rejected", {{std::string(JsonKey(rejection.reason)), rejection.detail}}},
               {"plan", ToJson(job.parallel)},
               {"question", QuestionJson(job)},
               {"warnings", warnings}});
}

namespace {

// Causes in the degrees' short names.
constexpr std::array<const char*, kCauses> kCauseKeys = {
    "compute", "recompute", "tp", "cp", "ep", "host", "pipeline", "dp", "optimizer"};
static_assert(static_cast<int>(Cause::kHost) == 5 && static_cast<int>(Cause::kOptimizer) == 8);

Json ByCause(const std::array<Seconds, kCauses>& seconds) {
  Json json;
  for (std::size_t i = 0; i < kCauseKeys.size(); ++i) json[kCauseKeys[i]] = seconds[i].value;
  return json;
}

// What one row of a comparison and `simulate` share.
Json Results(const Simulation& s) {
  return {{"schedule", s.schedule},
          {"step_time_s", s.step.step().value},
          {"estimate_step_time_s", s.estimate.step.value},
          {"estimate_schedule", s.estimated_schedule},
          {"tokens_per_s_per_gpu", s.tokens_per_second_per_gpu()},
          {"mfu", s.mfu()},
          {"bubble_share", s.bubble_share()},
          {"peak_bytes", s.peak().value},
          {"capacity_bytes", s.estimate.capacity.value},
          {"host_bytes_a_node", s.estimate.host.value},
          {"host_capacity_bytes_a_node", HostCapacity(s.estimate)},
          {"fits", s.fits()}};
}

Json Rows(const Comparison& comparison, const char* key, bool with_plan) {
  Json rows = Json::array();
  for (const ComparedPlan& row : comparison.rows) {
    Json one{{key, row.name}, {"reason", nullptr}};
    if (with_plan) one["gpus"] = row.gpus;
    if (with_plan) one["plan"] = ToJson(row.plan);
    if (row.simulation) {
      one.update(Results(*row.simulation));
      one[key] = row.name;
      one["slower"] = comparison.Slower(row);
    } else {
      one["reason"] = row.why_not;
      one["fits"] = false;
    }
    rows.push_back(std::move(one));
  }
  return rows;
}

Json BestName(const Comparison& comparison) {
  const std::size_t best = comparison.best();
  return best < comparison.rows.size() ? Json(comparison.rows[best].name) : Json(nullptr);
}

}  // namespace

namespace {

Json ToJson(const FullReport& r) {
  Json contention = Json::object();
  for (int i = 0; i < kCauses; ++i) {
    const Contention& c = r.contention[std::size_t(i)];
    if (c.collectives == 0) continue;
    contention[kCauseKeys[std::size_t(i)]] = {{"collectives", c.collectives},
                                              {"delayed", c.delayed},
                                              {"delay_s", c.delay.value},
                                              {"worst", c.worst}};
  }
  const auto links = [](const std::vector<LinkUseReport>& uses, bool kinds) {
    Json json = Json::array();
    for (const LinkUseReport& use : uses) {
      Json one = {{"name", use.name}, {"bytes", use.bytes.value}, {"utilisation", use.utilisation}};
      if (kinds) {
        one.update(
            {{"mean_utilisation", use.mean}, {"links", use.links}, {"busiest", use.busiest}});
      }
      json.push_back(std::move(one));
    }
    return json;
  };
  Json steps = Json::array();
  for (const Seconds step : r.steps) steps.push_back(step.value);
  return {{"folded_step_time_s", r.folded.value},
          {"difference", r.difference()},
          {"ranks", r.ranks},
          {"tasks", r.tasks},
          {"slowest_rank", r.slowest},
          {"shown_step", r.median},
          {"disturbed_in_vain", r.disturbed_in_vain},
          {"shown_member", r.shown},
          {"seed", r.options.seed},
          {"steps_s", std::move(steps)},
          {"mean_s", r.mean().value},
          {"p5_s", r.Percentile(0.05).value},
          {"p50_s", r.Percentile(0.5).value},
          {"p95_s", r.Percentile(0.95).value},
          {"contention", std::move(contention)},
          {"link_kinds", links(r.link_kinds, true)},
          {"links", links(r.links, false)}};
}

}  // namespace

std::string SimulationJson(const Job& job, const Simulation& s) {
  Json json = Results(s);
  json["micro_batches"] = s.estimate.micro_batches;
  json["ranks"] = Json::array();
  for (std::size_t rank = 0; rank < s.step.ranks.size(); ++rank) {
    const RankTime& time = s.step.ranks[rank];
    json["ranks"].push_back({{"rank", rank},
                             {"busy", ByCause(time.busy)},
                             {"waiting", ByCause(time.waiting)},
                             {"idle_s", time.idle.value},
                             {"peak_bytes", s.step.peak[rank].value}});
  }
  json["tasks"] = s.step.graph.size();
  if (s.full) json["full"] = ToJson(*s.full);
  json["question"] = QuestionJson(job);
  json["plan"] = ToJson(s.plan());
  json["timing"] = {{"simulate_s", s.seconds}};
  return Dump(json);
}

std::string SweepJson(const SweepAnswer& answer) {
  Json points = Json::array();
  for (const SweepRow& row : answer.rows) {
    Json at = Json::object();
    for (std::size_t i = 0; i < row.at.size(); ++i) at[answer.axes[i].name] = row.at[i];
    Json one = {{"at", std::move(at)},
                {"fits", row.fits},
                {"reason", row.reason.empty() ? Json(nullptr) : Json(row.reason)},
                {"step_time_s", nullptr},
                {"plan", nullptr}};
    if (row.plan) {
      one["step_time_s"] = row.plan->step().value;
      one["estimate_step_time_s"] = row.plan->estimate.step.value;
      one["simulated"] = row.plan->simulated.has_value();
      one["tokens_per_s_per_gpu"] = row.tokens_per_second_per_gpu();
      one["mfu"] = row.mfu();
      one["peak_bytes"] = row.plan->peak().value;
      one["plan"] = ToJson(row.plan->estimate.plan);
    }
    points.push_back(std::move(one));
  }
  return Dump({{"own_plan", answer.own_plan},
               {"warnings", answer.warnings},
               {"points", std::move(points)},
               {"timing", {{"sweep_s", answer.seconds}}}});
}

std::string RunJson(const RunAnswer& answer) {
  const RunOutcome& outcome = answer.outcome;
  Json compared = Json::array(), sent = Json::array(), ranks = Json::array();
  Json rank_times = Json::array(), step_times = Json::array();
  for (const Agreement& one : outcome.agreements) {
    compared.push_back({{"what", one.what},
                        {"tensors", one.compared},
                        {"elements", one.elements},
                        {"worst", one.worst},
                        {"error", one.error},
                        {"limit", one.limit},
                        {"holds", one.holds()}});
  }
  for (const SentBytes& one : outcome.sent) {
    sent.push_back({{"call", one.name},
                    {"kind", std::string(Name(one.kind))},
                    {"calls", one.calls},
                    {"bytes", one.bytes}});
  }
  for (const RankOfRun& one : outcome.ranks) {
    ranks.push_back({{"rank", one.rank}, {"sent_bytes", one.sent}, {"peak_bytes", one.peak}});
    rank_times.push_back(
        {{"rank", one.rank},
         {"operators_s", one.busy.value},
         {"step_s", one.step.value},
         {"process_peak_bytes", one.resident > 0 ? Json(one.resident) : Json(nullptr)}});
  }
  for (Seconds step : outcome.seconds) step_times.push_back(step.value);
  Json timing{{"step_s", std::move(step_times)}, {"ranks", std::move(rank_times)}};
  if (answer.compared) {
    timing["simulated"] = ToJson(*answer.compared);
  }
  Json all{{"verified", answer.options.verify},
           {"holds", outcome.holds()},
           {"losses", outcome.losses},
           {"compared", std::move(compared)},
           {"sent", std::move(sent)},
           {"ranks", std::move(ranks)},
           {"dtype", std::string(Name(answer.options.type))},
           {"linear_layers", answer.job.training.precision == Precision::kFp8
                                 ? "fp8"
                                 : std::string(Name(answer.options.type))},
           {"backend", std::string(Name(answer.backend))},
           {"warnings", answer.warnings},
           {"question", QuestionJson(answer.job)},
           {"plan", ToJson(answer.job.parallel)},
           {"timing", std::move(timing)}};
  if (!outcome.attention_by.empty()) all["attention_by"] = outcome.attention_by;
  return Dump(all);
}

std::string ScheduleComparisonJson(const Job& job, const Comparison& comparison) {
  return Dump({{"best", BestName(comparison)},
               {"fits", comparison.any_fits()},
               {"schedules", Rows(comparison, "schedule", false)},
               {"question", QuestionJson(job)},
               {"plan", ToJson(job.parallel)},
               {"timing", {{"simulate_s", comparison.seconds}}}});
}

std::string JobComparisonJson(const Comparison& comparison) {
  return Dump({{"best", BestName(comparison)},
               {"fits", comparison.any_fits()},
               {"jobs", Rows(comparison, "job", true)},
               {"timing", {{"simulate_s", comparison.seconds}}}});
}

}  // namespace millwright
