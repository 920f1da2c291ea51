// SPDX-License-Identifier: Apache-2.0
#include "report/step_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/unit_text.h"
#include "report/estimate_text.h"
#include "report/full_text.h"
#include "report/page.h"
#include "report/page_parts.h"
#include "report/simulate_text.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostTimelines = 24;

// Of a pass's kind, as the scripts count them: the paints of passes come first.
int KindCode(PassKind kind) { return static_cast<int>(kind); }

// Codes of bars that are no single pass, behind the four kinds of those.
constexpr int kPairCode = 4, kWaitCode = 5, kTaskCode = 6, kIdleCode = 7, kMergedCode = 8;

// One bar after the other: length, code, and what goes with the code (report/page/timeline.js
// reads them).
void AddBar(const PictureBar& bar, Json& flat) {
  const auto add = [&](auto... numbers) { (flat.push_back(numbers), ...); };
  add(bar.length);
  switch (bar.kind) {
    case PictureBar::Kind::kPass:
      add(KindCode(bar.pass.kind), bar.pass.stage, bar.pass.micro_batch, bar.shape);
      return;
    case PictureBar::Kind::kPair:
      add(kPairCode, KindCode(bar.pass.kind), bar.pass.stage, bar.pass.micro_batch,
          KindCode(bar.with.kind), bar.with.stage, bar.with.micro_batch, bar.shape);
      return;
    case PictureBar::Kind::kWait:
      add(kWaitCode, static_cast<int>(bar.paint), bar.label, bar.rank, bar.stage, bar.micro_batch);
      return;
    case PictureBar::Kind::kTask:
      add(kTaskCode, static_cast<int>(bar.paint), bar.label);
      return;
    case PictureBar::Kind::kIdle:
      add(kIdleCode);
      return;
    case PictureBar::Kind::kMerged:
      add(kMergedCode, bar.count, bar.shape);
      return;
  }
}

// stream, label, paint, start, length; and beside passes stage, micro-batch, count.
Json TasksJson(const std::vector<PictureTask>& tasks, bool beside) {
  Json flat = Json::array();
  for (const PictureTask& task : tasks) {
    flat.push_back(task.waiting ? kStreams : static_cast<int>(task.stream));
    flat.push_back(task.label == kSeveralLabels ? std::int64_t{-1} : task.label);
    flat.push_back(static_cast<int>(task.paint));
    flat.push_back(task.start);
    flat.push_back(task.length);
    if (!beside) continue;
    flat.push_back(task.stage);
    flat.push_back(task.micro_batch);
    flat.push_back(task.count);
  }
  return flat;
}

Json RankJson(const PictureRank& rank) {
  constexpr double kMiB = 1024.0 * 1024;
  Json bars = Json::array(), moments = Json::array(), held = Json::array();
  for (const PictureBar& bar : rank.bars) AddBar(bar, bars);
  for (const std::int64_t moment : rank.moments) moments.push_back(moment);
  for (const Bytes bytes : rank.held) held.push_back(std::llround(bytes.value / kMiB));
  return {{"stages", rank.stages},
          {"bars", std::move(bars)},
          {"beside", TasksJson(rank.beside, true)},
          {"times", rank.times},
          {"fixed", rank.fixed.value},
          {"peak", rank.peak.value},
          {"moments", std::move(moments)},
          {"held_mib", std::move(held)}};
}

// What was left out of a picture, one sentence each.
std::vector<std::string> Notes(const StepPicture& picture, bool tasks) {
  std::vector<std::string> notes;
  const auto count = [](std::int64_t n) { return FormatInteger(n); };
  if (picture.merged_bars > 0) {
    notes.push_back(
        fmt::format("{} of the shortest bars are merged with their neighbours, to "
                    "keep the page small; a merged bar shows how its time divides.",
                    count(picture.merged_bars)));
  }
  if (tasks && picture.without_tasks > 0) {
    notes.push_back(fmt::format("{} of {} passes are drawn without the tasks within them.",
                                count(picture.without_tasks), count(picture.passes)));
  }
  if (picture.merged_tasks > 0) {
    notes.push_back(
        fmt::format("{} transfers and data-parallel tasks are merged with their neighbours.",
                    count(picture.merged_tasks)));
  }
  if (picture.memory_slice > 0) {
    notes.push_back(fmt::format("Memory is the most held within each {} of the step.",
                                FormatSeconds(Seconds(double(picture.memory_slice) / 1e9))));
  }
  return notes;
}

Json PictureJson(const StepPicture& picture, bool tasks) {
  Json ranks = Json::array(), shapes = Json::array();
  for (const PictureRank& rank : picture.ranks) ranks.push_back(RankJson(rank));
  for (const PassShape& shape : picture.shapes) {
    Json times = Json::array();  // paint, ns
    for (std::size_t i = 0; i < shape.times.size(); ++i) {
      if (shape.times[i] == 0) continue;
      times.push_back(i);
      times.push_back(shape.times[i]);
    }
    shapes.push_back({std::move(times), TasksJson(shape.tasks, false)});
  }
  return {{"length", picture.length},
          {"passes", picture.passes},
          {"stages_per_direction", picture.stages_per_direction},
          {"labels", picture.labels},
          {"ranks", std::move(ranks)},
          {"shapes", std::move(shapes)},
          {"notes", Notes(picture, tasks)}};
}

Json PaintNames() {
  Json names = Json::array();
  for (int i = 0; i < kPaints; ++i) names.push_back(Name(static_cast<Paint>(i)));
  return names;
}
Json StreamNames() {
  Json names = Json::array();
  for (int i = 0; i < kStreams; ++i) names.push_back(Name(static_cast<Stream>(i)));
  names.push_back("waiting");
  return names;
}

Json FactsJson(const Job& job) {
  Json facts = Json::array();
  for (const auto& [what, asked] : QuestionRows(job)) facts.push_back({what, asked});
  return facts;
}

// Files may hold anything in their names: what is not UTF-8 is replaced.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json Tile(std::string_view title, std::string_view value, std::string_view note) {
  return {{"title", title}, {"value", value}, {"note", note}};
}

Json TilesJson(const Simulation& s) {
  const double difference = std::abs(s.difference());
  constexpr double kLeast = 0.0005;  // what one decimal of a percentage shows
  const std::string against =
      difference < kLeast
          ? std::string("the same")
          : fmt::format("{} {}", Percent(difference), s.difference() < 0 ? "less" : "more");
  const Bytes room = s.estimate.capacity - s.peak();
  return {
      Tile("Simulated step", PerStep(s.step.step()), s.schedule),
      Tile("Estimated", PerStep(s.estimate.step),
           s.estimate_is_of_it() ? against
                                 : fmt::format("as {}, {}", s.estimated_schedule, against)),
      Tile("MFU", Percent(s.mfu()),
           fmt::format("{} tokens/s/GPU", FormatRate(s.tokens_per_second_per_gpu()))),
      Tile("Bubble", Percent(s.bubble_share()), "of the step, mean of the ranks"),
      Tile(s.fits() ? "Fits" : "Does not fit", GiB(s.peak()),
           s.fits() || room < Bytes(0)
               ? fmt::format("{} {} of {} on rank {}", GiB(s.fits() ? room : -1.0 * room),
                             s.fits() ? "free" : "over", GiB(s.estimate.capacity), s.step.fullest())
               : HostShortage(s.estimate))};
}

// What only a simulation with every rank knows.
Json FullJson(const FullReport& report) {
  Json links = Json::array(), kinds = Json::array(), steps = Json::array();
  for (const auto& [uses, json] :
       {std::pair(&report.link_kinds, &kinds), {&report.links, &links}}) {
    for (const LinkUseReport& use : *uses) {
      json->push_back({{"name", use.name},
                       {"utilisation", use.utilisation},
                       {"mean", use.mean},
                       {"links", use.links},
                       {"bytes", use.bytes.value}});
    }
  }
  for (const Seconds step : report.steps) steps.push_back(step.value);
  return {{"sentence", FullSentence(report)},
          {"folded", report.folded.value},
          {"shown", report.shown},
          {"contention", ContentionRows(report)},
          {"link_kinds", std::move(kinds)},
          {"links", std::move(links)},
          {"steps", std::move(steps)}};
}

Page PageOf(std::string title, const Json& data) {
  return {.title = std::move(title),
          .data = Dump(data),
          .scripts = {TimelineScript(), ChartsScript(), StepScript()}};
}

}  // namespace

PictureLimits LimitsOfRow(std::size_t rows) {
  constexpr std::size_t kBars = 60000, kFewest = 1000;
  return {
      .bars = std::max(kFewest, kBars / std::max<std::size_t>(1, rows)), .tasks = 0, .moments = 0};
}

std::string TimelineJson(const SimulatedStep& step) {
  return Dump({{"paints", PaintNames()},
               {"streams", StreamNames()},
               {"step", PictureJson(PictureOf(step, {}), true)}});
}

void WriteStepPage(const Job& job, const Simulation& s, FileWriter& out) {
  Json data = {{"kind", "step"},
               {"heading", job.model.name},
               {"cluster", job.cluster.name},
               {"plan", BriefName(s.plan())},
               {"schedule", s.schedule},
               {"sentence", SimulationSentence(s, job.cluster.gpu)},
               {"fits", s.fits()},
               {"tiles", TilesJson(s)},
               {"facts", FactsJson(job)},
               {"paints", PaintNames()},
               {"streams", StreamNames()},
               {"capacity", s.estimate.capacity.value}};
  data["step"] = PictureJson(PictureOf(s.step, {}), true);
  data["full"] = s.full ? FullJson(*s.full) : Json(nullptr);
  WritePage(PageOf(fmt::format("{}: simulated step", job.model.name), data), out);
}

void WriteComparisonPage(const Job* job, const Comparison& comparison, FileWriter& out) {
  const ComparisonTable table = job ? ScheduleTable(comparison) : JobTable(comparison);
  Json data = {{"kind", "comparison"},
               {"heading", job ? job->model.name : "Jobs"},
               {"cluster", job ? job->cluster.name : ""},
               {"plan", job ? BriefName(job->parallel) : ""},
               {"sentence", BestSentence(comparison, job ? "schedule" : "job")},
               {"fits", comparison.any_fits()},
               {"facts", job ? FactsJson(*job) : Json::array()},
               {"paints", PaintNames()},
               {"streams", StreamNames()},
               {"table", {{"titles", table.titles}, {"rows", table.rows}}},
               {"best", comparison.best()},
               {"notes", Json::array()}};

  std::vector<std::size_t> drawn;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    if (comparison.rows[i].simulation) drawn.push_back(i);
  }
  if (drawn.size() > kMostTimelines) {
    std::stable_sort(drawn.begin(), drawn.end(), [&](std::size_t a, std::size_t b) {
      const auto key = [&](std::size_t i) {
        return std::pair(!comparison.rows[i].fits(), comparison.rows[i].simulation->step.step());
      };
      return key(a) < key(b);
    });
    data["notes"].push_back(
        fmt::format("The {} fastest of {} are drawn, those that fit first; the table has all.",
                    kMostTimelines, drawn.size()));
    drawn.resize(kMostTimelines);
    std::sort(drawn.begin(), drawn.end());
  }
  data["rows"] = Json::array();
  for (const std::size_t i : drawn) {
    const ComparedPlan& row = comparison.rows[i];
    const Simulation& s = *row.simulation;
    data["rows"].push_back({{"index", i},
                            {"name", row.name},
                            {"schedule", s.schedule},
                            {"plan", BriefName(s.plan())},
                            {"fits", s.fits()},
                            {"capacity", s.estimate.capacity.value},
                            {"step", PictureJson(row.picture, false)}});
  }
  data["reasons"] = Json::array();
  for (const ComparedPlan& row : comparison.rows) {
    if (!row.simulation) data["reasons"].push_back({row.name, row.why_not});
  }
  WritePage(PageOf(job ? fmt::format("{}: schedules compared", job->model.name)
                       : std::string("Jobs compared"),
                   data),
            out);
}

}  // namespace millwright
