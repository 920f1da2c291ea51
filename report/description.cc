// SPDX-License-Identifier: Apache-2.0
#include "report/description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/model_presets.h"
#include "core/parameters.h"
#include "core/unit_text.h"
#include "cost_models/calibration.h"
#include "planner/plan_filter.h"

namespace millwright {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

// A config as its file would hold it.
template <class T>
Json Written(const T& config) {
  T copy = config;
  return Json::parse(WriteConfig([&](ConfigIo& io) { Fields(io, copy); }), nullptr, true, false);
}

// A config's values, each with its meaning.
template <class T>
std::string ValuesText(const T& config, const Style& style) {
  T copy = config;
  const Json values = Written(config);
  TextTable table;
  table.Column("Field", Align::kLeft);
  table.Column("Value", Align::kLeft);
  table.Column("Meaning", Align::kLeft);
  for (const FieldDoc& field : DescribeConfig([&](ConfigIo& io) { Fields(io, copy); })) {
    const Json::json_pointer pointer(field.pointer);
    // Lists are shown by the caller, and where a preset was inherited from is no value.
    if (field.pointer.find('*') != std::string::npos || !values.contains(pointer)) continue;
    const Json& value = values[pointer];
    if (value.is_structured() || field.pointer.ends_with("/inherit")) continue;
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    constexpr std::size_t kLong = 28;  // a source, which is shown apart
    if (text.size() > kLong) continue;
    table.Row({"  " + field.pointer.substr(1), text, field.meaning});
  }
  return table.Text(style);
}

std::string_view Name(WeightSplit split) {
  switch (split) {
    case WeightSplit::kReplicated:
      return "replicated";
    case WeightSplit::kTensor:
      return "tensor";
    case WeightSplit::kQueryGroups:
      return "query_groups";
    case WeightSplit::kVocabulary:
      return "vocabulary";
    case WeightSplit::kExpert:
      return "expert";
    case WeightSplit::kExpertReplicated:
      return "expert_replicated";
  }
  return {};
}

// The parts of a model, each with how often it occurs.
struct Part {
  std::string name;
  std::int64_t repeated;
  std::vector<Weight> weights;
};
std::vector<Part> PartsOf(const ModelConfig& model) {
  std::vector<Part> parts = {{"embedding", 1, EmbeddingWeights(model)}};
  for (const LayerKind& kind : model.distinct_kinds()) {
    std::int64_t count = 0;
    for (const LayerRun& run : model.layers) {
      if (run.kind == kind) count += run.count;
    }
    std::string name = kind.moe ? "MoE layer" : "dense layer";
    if (kind.sliding_window > 0) name += fmt::format(", window {}", kind.sliding_window);
    parts.push_back({name, count, LayerWeights(model, kind)});
  }
  parts.push_back({"head", 1, HeadWeights(model)});
  if (model.mtp_num_layers > 0) {
    parts.push_back({"MTP module, beyond its layer", model.mtp_num_layers, MtpWeights(model)});
  }
  return parts;
}

std::string Peak(FlopsPerSecond peak) {
  return peak.value > 0 ? fmt::format("{:.0f}", peak.value / 1e12) : "-";
}

// Groups that plans use: inside a domain, across domains, everything.
std::vector<StridedGroup> TypicalGroups(const Cluster& cluster) {
  std::vector<StridedGroup> groups;
  const int domain = cluster.gpus_per_domain(), all = cluster.gpus();
  for (int ranks = 2; ranks < domain; ranks *= 2) {
    if (domain % ranks == 0) groups.push_back({.stride = 1, .ranks = ranks});
  }
  if (domain > 1) groups.push_back({.stride = 1, .ranks = domain});
  if (cluster.domains() > 1) {
    groups.push_back({.stride = domain, .ranks = 2});
    if (cluster.domains() > 2) groups.push_back({.stride = domain, .ranks = cluster.domains()});
    if (domain > 1) groups.push_back({.stride = 1, .ranks = all});
  }
  return groups;
}

constexpr std::pair<VertexKind, std::string_view> kVertexKinds[] = {
    {VertexKind::kGpu, "gpus"},
    {VertexKind::kNvswitch, "nvswitch_planes"},
    {VertexKind::kPcieSwitch, "pcie_switches"},
    {VertexKind::kSocket, "sockets"},
    {VertexKind::kNic, "nics"},
    {VertexKind::kLeaf, "leaf_switches"},
    {VertexKind::kSpine, "spine_switches"},
    {VertexKind::kCore, "core_switches"},
};

std::string Text(std::string_view text) { return std::string(text); }

}  // namespace

std::string ModelsText(const Style& style) {
  TextTable table;
  table.Column("Model", Align::kLeft);
  table.Column("parameters");
  table.Column("active");
  table.Column("layers");
  table.Column("hidden");
  table.Column("also", Align::kLeft);
  for (const ModelPreset& preset : ModelPresets()) {
    const ModelConfig model = PresetModel(preset.name);
    const ParameterCount p = CountParameters(model);
    table.Row({Text(preset.name), FormatCount(double(p.total)),
               p.active == p.total ? "" : FormatCount(double(p.active)),
               std::to_string(model.num_layers), std::to_string(model.hidden_size),
               fmt::format("{}", fmt::join(preset.aliases, ", "))});
  }
  return table.Text(style) +
         "\nOr a path to a Hugging Face config.json, or a shape: --layers, --hidden, --heads, ...\n"
         "`millwright describe model NAME` shows one, with its source.\n";
}

std::string ModelsJson() {
  Json models = Json::array();
  for (const ModelPreset& preset : ModelPresets()) {
    const ParameterCount p = CountParameters(PresetModel(preset.name));
    models.push_back(
        {{"name", Text(preset.name)},
         {"aliases", std::vector<std::string>(preset.aliases.begin(), preset.aliases.end())},
         {"parameters", {{"total", p.total}, {"active", p.active}}},
         {"source", Text(preset.source)}});
  }
  return Dump({{"models", std::move(models)}});
}

std::string ClustersText(const Style& style) {
  TextTable table;
  table.Column("Cluster", Align::kLeft);
  table.Column("GPUs a node");
  table.Column("GPU", Align::kLeft);
  table.Column("GPU to GPU");
  table.Column("NICs");
  table.Column("each");
  table.Column("also", Align::kLeft);
  for (const ClusterPreset& preset : ClusterPresets()) {
    const ClusterConfig& c = preset.config;
    table.Row({c.name, std::to_string(c.gpus_per_node), c.gpu.name,
               FormatBandwidth(c.domain_link == DomainLink::kPcie ? c.pcie_bandwidth
                                                                  : c.nvlink_bandwidth),
               std::to_string(c.nics_per_node), FormatBandwidth(c.nic_bandwidth),
               fmt::format("{}", fmt::join(preset.aliases, ", "))});
  }
  return table.Text(style) +
         "\nOr a JSON file, which may say {\"inherit\": \"dgx-h100\", ...}; `millwright describe "
         "job` lists\nits fields, `millwright describe cluster NAME --nodes N` shows one.\n";
}

std::string ClustersJson() {
  Json clusters = Json::array();
  for (const ClusterPreset& preset : ClusterPresets()) {
    clusters.push_back({{"name", preset.config.name},
                        {"aliases", preset.aliases},
                        {"gpu", preset.config.gpu.name},
                        {"gpus_per_node", preset.config.gpus_per_node},
                        {"source", preset.config.source}});
  }
  return Dump({{"clusters", std::move(clusters)}});
}

std::string GpusText(const Style& style) {
  TextTable table;
  table.Column("GPU", Align::kLeft);
  for (const char* title : {"BF16", "FP8", "FP4", "memory", "bandwidth"}) table.Column(title);
  table.Column("calibration", Align::kLeft);
  table.Column("also", Align::kLeft);
  for (const GpuPreset& preset : GpuPresets()) {
    const GpuSpec& g = preset.spec;
    table.Row({g.name, Peak(g.peak_bf16), Peak(g.peak_fp8), Peak(g.peak_fp4),
               FormatBytes(g.hbm_capacity), FormatBandwidth(g.hbm_bandwidth), g.calibration,
               fmt::format("{}", fmt::join(preset.aliases, ", "))});
  }
  return table.Text(style) + "\nPeaks are dense, in TFLOP/s, by the datasheet.\n";
}

std::string GpusJson() {
  Json gpus = Json::array();
  for (const GpuPreset& preset : GpuPresets()) {
    Json one = Written(preset.spec);
    one["aliases"] = preset.aliases;
    gpus.push_back(std::move(one));
  }
  return Dump({{"gpus", std::move(gpus)}});
}

std::string ModelText(const ModelConfig& model, const Style& style) {
  const ParameterCount p = CountParameters(model);
  std::string text = Bold(fmt::format("{}: {} parameters{}.", model.name, FormatInteger(p.total),
                                      p.active == p.total ? std::string()
                                                          : fmt::format(", {} active a token",
                                                                        FormatInteger(p.active))),
                          style) +
                     "\n\n";
  for (const ModelPreset& preset : ModelPresets()) {
    if (preset.name == model.name && PresetModel(preset.name) == model) {
      text += fmt::format("Source: {}\n\n", preset.source);
    }
  }
  text += ValuesText(model, style);
  if (model.layers.size() > 1) {
    std::string runs;
    constexpr std::size_t kMostRuns = 12;
    for (std::size_t i = 0; i < std::min(kMostRuns, model.layers.size()); ++i) {
      const LayerRun& run = model.layers[i];
      runs += fmt::format(
          "{}{} x {}{}", i == 0 ? "" : ", ", run.count, run.kind.moe ? "MoE" : "dense",
          run.kind.sliding_window > 0 ? fmt::format(" with window {}", run.kind.sliding_window)
                                      : "");
    }
    if (model.layers.size() > kMostRuns) runs += ", ...";
    text += '\n' + Wrapped("Layers in order: " + runs, style.width, 0) + '\n';
  }
  for (const Part& part : PartsOf(model)) {
    std::int64_t elements = 0;
    TextTable table;
    table.Column("", Align::kLeft);
    table.Column("rows");
    table.Column("columns");
    table.Column("count");
    table.Column("parameters");
    table.Column("split over", Align::kLeft);
    for (const Weight& w : part.weights) {
      elements += w.elements();
      table.Row({Text(w.name), FormatInteger(w.rows), FormatInteger(w.cols), FormatInteger(w.count),
                 FormatInteger(w.elements()), Text(Name(w.split))});
    }
    text += '\n' +
            Bold(fmt::format("{} x {}: {} parameters", part.repeated, part.name,
                             FormatInteger(elements)),
                 style) +
            '\n' + table.Text(style, 2);
  }
  return text;
}

std::string ModelJson(const ModelConfig& model) {
  const ParameterCount p = CountParameters(model);
  Json json = {{"name", model.name},
               {"parameters", {{"total", p.total}, {"active", p.active}}},
               {"config", Written(model)},
               {"shapes", Json::array()}};
  for (const Part& part : PartsOf(model)) {
    Json weights = Json::array();
    for (const Weight& w : part.weights) {
      weights.push_back({{"name", Text(w.name)},
                         {"rows", w.rows},
                         {"cols", w.cols},
                         {"count", w.count},
                         {"elements", w.elements()},
                         {"split", Text(Name(w.split))}});
    }
    json["shapes"].push_back(
        {{"part", part.name}, {"repeated", part.repeated}, {"weights", std::move(weights)}});
  }
  return Dump(json);
}

std::string ClusterText(const Cluster& cluster, const Style& style) {
  const ClusterConfig& c = cluster.config();
  std::string text =
      Bold(fmt::format("{}: {} of {}, {} ({}).", c.name, Counted(c.nodes, "node"),
                       Counted(c.gpus_per_node, "GPU"), Counted(cluster.gpus(), "GPU"), c.gpu.name),
           style) +
      '\n';
  if (!c.source.empty()) text += Wrapped("Source: " + c.source, style.width, 0) + '\n';
  if (!c.unlike_nodes.empty()) {
    text +=
        Wrapped("Unlike: " + TextOf(c.unlike_nodes) + "; all below is of nodes as slow as these",
                style.width, 0) +
        '\n';
  }

  TextTable graph;
  graph.Column("The graph", Align::kLeft);
  graph.Column("");
  for (const auto& [kind, name] : kVertexKinds) {
    if (cluster.CountOf(kind) == 0) continue;
    std::string words(name);
    std::replace(words.begin(), words.end(), '_', ' ');
    graph.Row({"  " + words, FormatInteger(cluster.CountOf(kind))});
  }
  graph.Row({"  links, one a direction", FormatInteger(std::int64_t(cluster.links().size()))});
  graph.Row({"  levels of fabric switches", std::to_string(cluster.switch_levels())});
  graph.Row({"  bisection, per direction", FormatBandwidth(cluster.Bisection())});
  text += '\n' + graph.Text(style);

  TextTable paths;
  paths.Column("A group of", Align::kLeft);
  paths.Column("domains");
  paths.Column("inside a domain");
  paths.Column("latency");
  paths.Column("between domains, a GPU");
  paths.Column("latency");
  for (const StridedGroup& group : TypicalGroups(cluster)) {
    const PathProfile p = cluster.Profile(group);
    const bool inside = p.max_ranks_per_domain > 1, across = p.domains > 1;
    paths.Row({group.stride == 1 ? fmt::format("  {} ranks", group.ranks)
                                 : fmt::format("  {} ranks, {} apart", group.ranks, group.stride),
               std::to_string(p.domains), inside ? FormatBandwidth(p.domain_bandwidth) : "-",
               inside ? FormatSeconds(p.domain_latency) : "-",
               across ? FormatBandwidth(p.fabric_bandwidth) : "-",
               across ? FormatSeconds(p.fabric_latency) : "-"});
  }
  if (paths.rows() > 0) text += '\n' + paths.Text(style);
  return text + '\n' + ValuesText(c, style);
}

std::string ClusterJson(const Cluster& cluster) {
  Json counts, profiles = Json::array();
  for (const auto& [kind, name] : kVertexKinds) counts[Text(name)] = cluster.CountOf(kind);
  for (const StridedGroup& group : TypicalGroups(cluster)) {
    const PathProfile p = cluster.Profile(group);
    profiles.push_back({{"stride", group.stride},
                        {"ranks", group.ranks},
                        {"domains", p.domains},
                        {"min_ranks_per_domain", p.min_ranks_per_domain},
                        {"max_ranks_per_domain", p.max_ranks_per_domain},
                        {"domain_bytes_per_s", p.domain_bandwidth.value},
                        {"domain_latency_s", p.domain_latency.value},
                        {"fabric_bytes_per_s", p.fabric_bandwidth.value},
                        {"fabric_latency_s", p.fabric_latency.value},
                        {"in_switch_reduction", p.in_switch_reduction}});
  }
  return Dump({{"name", cluster.config().name},
               {"gpus", cluster.gpus()},
               {"config", Written(cluster.config())},
               {"vertices", std::move(counts)},
               {"links", cluster.links().size()},
               {"switch_levels", cluster.switch_levels()},
               {"bisection_bytes_per_s", cluster.Bisection().value},
               {"profiles", std::move(profiles)}});
}

std::string GpuText(const GpuSpec& gpu, const Style& style) {
  const Calibration& calibration = CalibrationFor(gpu);
  std::string text =
      Bold(fmt::format("{}: {}, {}, {} dense BF16.", gpu.name, FormatBytes(gpu.hbm_capacity),
                       FormatBandwidth(gpu.hbm_bandwidth), FormatFlopRate(gpu.peak_bf16)),
           style) +
      '\n';
  if (!gpu.source.empty()) text += Wrapped("Source: " + gpu.source, style.width, 0) + '\n';
  text +=
      Wrapped(fmt::format("Efficiency curves: {}, from {}", calibration.name, calibration.source),
              style.width, 0) +
      '\n';
  return text + '\n' + ValuesText(gpu, style);
}

std::string GpuJson(const GpuSpec& gpu) {
  const Calibration& calibration = CalibrationFor(gpu);
  Json json = Written(gpu);
  json["calibration_used"] = {{"name", Text(calibration.name)},
                              {"source", Text(calibration.source)}};
  return Dump(json);
}

std::string FieldsText(const std::vector<FieldDoc>& fields, const Style& style) {
  std::string text;
  for (const FieldDoc& field : fields) {
    std::string about = field.type;
    if (!field.accepted.empty() && field.accepted != field.type) about += ", " + field.accepted;
    text += Bold(field.pointer, style) + '\n' + Wrapped(about, style.width, 4) + '\n';
    if (!field.default_value.empty()) {
      text += Wrapped("default: " + field.default_value, style.width, 4) + '\n';
    }
    if (!field.meaning.empty()) text += Wrapped(field.meaning, style.width, 4) + '\n';
  }
  return text;
}

std::string FieldsJson(const std::vector<FieldDoc>& fields) {
  Json list = Json::array();
  for (const FieldDoc& field : fields) {
    list.push_back({{"pointer", field.pointer},
                    {"type", field.type},
                    {"accepted", field.accepted},
                    {"default", field.default_value},
                    {"meaning", field.meaning}});
  }
  return Dump({{"fields", std::move(list)}});
}

namespace {

std::string ScheduleNames() {
  std::string names;
  for (const auto& schedule : TrainingScheduleNames()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", schedule.name);
  }
  return names;
}

}  // namespace

std::vector<KnobDoc> KnobDocs() {
  constexpr Knob kKnobs[] = {Knob::kTp,        Knob::kSp,         Knob::kCp,       Knob::kCpKind,
                             Knob::kPp,        Knob::kVpp,        Knob::kDp,       Knob::kEp,
                             Knob::kEtp,       Knob::kMicroBatch, Knob::kZero,     Knob::kZeroShard,
                             Knob::kRecompute, Knob::kOffload,    Knob::kSchedule, Knob::kOrder,
                             Knob::kCpUlysses};
  const std::vector<std::string_view> names = KnobNames();
  MILLWRIGHT_CHECK(names.size() == std::size(kKnobs));
  std::vector<KnobDoc> docs;
  for (Knob knob : kKnobs) {
    KnobDoc doc{.name = Text(names[static_cast<std::size_t>(knob)]), .accepted = "1, 2, ..."};
    doc.flag = "--" + doc.name;
    std::replace(doc.flag.begin(), doc.flag.end(), '_', '-');
    switch (knob) {
      case Knob::kTp:
        doc.meaning = "tensor parallel degree";
        break;
      case Knob::kSp:
        doc.accepted = "on, off";
        doc.flag = "--sp, --no-sp";
        doc.meaning = "sequence parallelism over the tensor ranks";
        break;
      case Knob::kCp:
        doc.meaning = "context parallel degree";
        break;
      case Knob::kCpKind:
        doc.accepted = "ring, ulysses, nested";
        doc.meaning = "how attention crosses context ranks";
        break;
      case Knob::kPp:
        doc.meaning = "pipeline parallel degree";
        break;
      case Knob::kVpp:
        doc.meaning = "virtual stages of a pipeline rank";
        break;
      case Knob::kDp:
        doc.meaning = "data parallel degree: GPUs / (tp cp pp)";
        break;
      case Knob::kEp:
        doc.meaning = "expert parallel degree";
        break;
      case Knob::kEtp:
        doc.meaning = "expert tensor parallel degree";
        break;
      case Knob::kMicroBatch:
        doc.meaning = "sequences in a micro-batch";
        break;
      case Knob::kZero:
        doc.accepted = "0, 1, 2, 3";
        doc.meaning = "sharded over data parallel ranks: 1 optimizer, 2 gradients, 3 weights too";
        break;
      case Knob::kZeroShard:
        doc.accepted = "0, 1, ...";
        doc.meaning = "ranks that hold one copy of what is sharded (HSDP); 0: all";
        break;
      case Knob::kRecompute:
        doc.accepted = "none, selective, full, full(all), full(N), selective(MODULE,...)";
        doc.meaning =
            "activations computed again; MODULE is core_attn, mlp, moe, moe_act, layernorm or "
            "mla_up_proj";
        break;
      case Knob::kOrder:
        doc.accepted = "tp-cp-ep-dp-pp, tp-cp-ep-pp-dp";
        doc.meaning =
            "which ranks have neighbouring GPUs, innermost first; the search takes the first "
            "unless told";
        break;
      case Knob::kOffload:
        doc.accepted = "0, 1, ...";
        doc.flag = "--offload-layers";
        doc.meaning = "layers of each virtual stage whose activations wait in host memory";
        break;
      case Knob::kCpUlysses:
        doc.accepted = "0, 2, 3, ...";
        doc.meaning = "neighbouring context ranks that exchange heads under nested; 0: not nested";
        break;
      case Knob::kSchedule:
        doc.accepted = ScheduleNames();
        doc.meaning =
            "of the pipeline; interleaved and bfs go with vpp above 1, the others with vpp 1";
        break;
    }
    docs.push_back(std::move(doc));
  }
  return docs;
}

std::string KnobsText(const Style& style) {
  std::string text = Wrapped(
                         "Of a plan, as --require, --forbid and --explain take them "
                         "(tp=8,pp=4|8 allows two values of pp), and the flag of estimate:",
                         style.width, 0) +
                     "\n\n";
  for (const KnobDoc& doc : KnobDocs()) {
    text += Bold(doc.name, style) + fmt::format("  ({})\n", doc.flag) +
            Wrapped(doc.accepted, style.width, 4) + '\n' + Wrapped(doc.meaning, style.width, 4) +
            '\n';
  }
  return text;
}

std::string KnobsJson() {
  Json list = Json::array();
  for (const KnobDoc& doc : KnobDocs()) {
    list.push_back({{"name", doc.name},
                    {"flag", doc.flag},
                    {"accepted", doc.accepted},
                    {"meaning", doc.meaning}});
  }
  return Dump({{"filters", std::move(list)}});
}

}  // namespace millwright
