// SPDX-License-Identifier: Apache-2.0
//
// millwright describe: the presets, what a name or a file stands for, every field of a config.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <optional>
#include <ostream>
#include <utility>

#include "cli/commands.h"
#include "cli/job_flags.h"
#include "core/mistakes.h"
#include "core/model_presets.h"
#include "planner/job.h"
#include "report/description.h"
#include "report/schedule_list.h"
#include "report/schedule_text.h"
#include "sim/schedule_file.h"

namespace millwright {
namespace {

struct Topic {
  std::string_view name;
  bool takes_name;
  std::string_view what;
};
constexpr std::array<Topic, 14> kTopics{{
    {"models", false, "the model presets"},
    {"clusters", false, "the cluster presets"},
    {"gpus", false, "the GPU presets"},
    {"schedules", false, "the pipeline schedules"},
    {"model", true, "one model: parameters and the shape of every weight"},
    {"cluster", true, "one cluster: its graph, bisection and what groups of GPUs get"},
    {"gpu", true, "one GPU: its datasheet and whose efficiency curves it takes"},
    {"schedule", true,
     "one pipeline schedule: each rank's passes, drawn, its bubble and its peaks"},
    {"job", false, "every field of the job file"},
    {"training", false, "every field of its training part"},
    {"parallel", false, "every field of its plan"},
    {"filters", false, "what --require, --forbid and --explain take"},
    {"plan", false, "the same, with the flags of estimate"},
    {"estimate", false, "the same"},
}};

const Topic& FindTopic(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Topic& topic : kTopics) {
    if (topic.name == name) return topic;
    names.push_back(topic.name);
  }
  constexpr std::size_t kMostShown = 60;
  const std::string_view nearest = NearestName(name, names);
  throw ConfigError(
      fmt::format("unknown topic \"{}\"{}; there are {}", Printable(name, kMostShown),
                  nearest.empty() ? std::string() : fmt::format(", did you mean \"{}\"?", nearest),
                  fmt::join(names, ", ")));
}

template <class T>
std::vector<FieldDoc> FieldsOf() {
  T config{};
  return DescribeConfig([&](ConfigIo& io) { Fields(io, config); });
}

std::string TopicsText(const Style& style) {
  TextTable table;
  table.Column("", Align::kLeft);
  table.Column("", Align::kLeft);
  for (const Topic& topic : kTopics) {
    table.Row({fmt::format("{}{}", topic.name, topic.takes_name ? " NAME" : ""),
               std::string(topic.what)});
  }
  return "Usage: millwright describe TOPIC [NAME] [--json]\n\nTopics:\n" + table.Text(style, 2);
}

// The flags of `describe schedule`.
struct ScheduleFlags {
  std::optional<std::int64_t> pp, micro_batches, vpp;
  std::optional<std::string> costs;

  void AddTo(CommandLine& line) {
    constexpr IntRange kCount{.min = 1, .max = 1 << 20};
    line.Section("Schedule");
    line.Int("--pp", pp, kCount, "pipeline ranks (default: 4)");
    line.Int("--microbatches", micro_batches, kCount,
             "micro-batches of the step (default: two a rank)");
    line.Int("--vpp", vpp, kCount, "chunks of a rank, where the schedule lets one choose");
    line.Text("--costs", "F=1,B=1,W=1,p2p=0", costs,
              "of all of a rank's layers: forward, gradient of the input, gradient of the weights; "
              "of a transfer between ranks");
  }
  // For every other topic.
  void Refuse(CommandLine& line) const {
    const std::pair<const char*, bool> given[] = {{"--pp", pp.has_value()},
                                                  {"--microbatches", micro_batches.has_value()},
                                                  {"--vpp", vpp.has_value()},
                                                  {"--costs", costs.has_value()}};
    for (const auto& [name, is_given] : given) {
      if (is_given) line.Problem(name, "goes with describe schedule");
    }
  }
  ScheduleQuestion Resolve(CommandLine& line, const std::string& name) const {
    ScheduleQuestion question{.schedule = name};
    const bool file = NamesScheduleFile(name);
    question.sizes.pipeline = static_cast<int>(pp.value_or(file ? 0 : 4));
    question.sizes.micro_batches =
        static_cast<int>(micro_batches.value_or(file ? 0 : 2LL * question.sizes.pipeline));
    const bool chooses = name == "interleaved" || name == "bfs";
    question.sizes.virtual_stages = static_cast<int>(vpp.value_or(chooses ? 2 : 1));
    if (vpp && (file || name.find(':') != name.npos)) {
      line.Problem("--vpp", fmt::format("{} says it already", file ? "the file" : name));
    }
    if (costs) question.costs = *costs;
    return question;
  }
};

}  // namespace

int DescribeCommand(std::span<const std::string> args, Console& console) {
  CommandLine line("describe [TOPIC [NAME|PATH]] [OPTIONS]",
                   "What millwright knows: without a topic, the list of topics.");
  std::vector<std::string> words;
  JobFlags flags;
  ScheduleFlags schedule_flags;
  bool json = false;
  line.Positionals("TOPIC NAME|PATH", words, 2,
                   "models, clusters, gpus, schedules, model NAME, cluster NAME, gpu NAME, "
                   "schedule NAME, job, training, parallel, filters");
  flags.AddClusterSizeTo(line);
  schedule_flags.AddTo(line);
  line.Section("Output");
  line.Flag("--json", json, "the answer as JSON");
  line.Example("describe model llama-3.1-70b --json");
  line.Example("describe cluster dgx-h100 --nodes 16");
  line.Example("describe schedule zb-h1 --pp 4 --microbatches 8 --costs F=1,B=1,W=1,p2p=0");
  line.Example("describe job");
  if (!line.Parse(args, console.out)) return 0;
  line.ThrowIfProblems();
  const Style& style = console.style;
  if (words.empty()) {
    console.out << TopicsText(style);
    return 0;
  }
  const Topic& topic = FindTopic(words[0]);
  if (topic.takes_name && words.size() < 2) {
    throw ConfigError(
        fmt::format("describe {}: expected a name or a path; describe {}s lists the "
                    "presets",
                    topic.name, topic.name));
  }
  if (!topic.takes_name && words.size() > 1) {
    constexpr std::size_t kMostShown = 60;
    throw ConfigError(fmt::format("describe {}: unexpected argument \"{}\"", topic.name,
                                  Printable(words[1], kMostShown)));
  }
  if (topic.name != "schedule") schedule_flags.Refuse(line);
  line.ThrowIfProblems();
  const auto show = [&](const std::string& text) { console.out << text; };
  const std::string_view name = topic.name;
  if (name == "models") {
    show(json ? ModelsJson() : ModelsText(style));
  } else if (name == "clusters") {
    show(json ? ClustersJson() : ClustersText(style));
  } else if (name == "gpus") {
    show(json ? GpusJson() : GpusText(style));
  } else if (name == "schedules") {
    show(json ? SchedulesJson() : SchedulesText(style));
  } else if (name == "schedule") {
    ScheduleQuestion question = schedule_flags.Resolve(line, words[1]);
    line.ThrowIfProblems();
    question.json = json;
    question.width = style.width;
    show(DescribeSchedule(question));
  } else if (name == "model") {
    const ModelConfig model = LoadModel(words[1]);
    show(json ? ModelJson(model) : ModelText(model, style));
  } else if (name == "cluster") {
    const ClusterConfig config = flags.ResolveCluster(line, words[1]);
    constexpr std::int64_t kSeconds = 1 << 17;  // GPUs whose graph is not cut in a moment
    if (config.gpus() >= kSeconds) {
      console.err << fmt::format("millwright: the graph of {} takes some seconds\n",
                                 Counted(config.gpus(), "GPU"));
      console.err.flush();
    }
    const Cluster cluster(config);
    show(json ? ClusterJson(cluster) : ClusterText(cluster, style));
  } else if (name == "gpu") {
    const GpuSpec gpu = FindGpu(words[1]);
    show(json ? GpuJson(gpu) : GpuText(gpu, style));
  } else if (name == "filters" || name == "plan" || name == "estimate") {
    show(json ? KnobsJson() : KnobsText(style));
  } else {
    const std::vector<FieldDoc> fields = name == "job"        ? FieldsOf<Job>()
                                         : name == "training" ? FieldsOf<TrainingConfig>()
                                                              : FieldsOf<ParallelConfig>();
    show(json ? FieldsJson(fields) : FieldsText(fields, style));
  }
  return 0;
}

}  // namespace millwright
