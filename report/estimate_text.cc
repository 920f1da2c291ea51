// SPDX-License-Identifier: Apache-2.0
#include "report/estimate_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/parameters.h"
#include "core/unit_text.h"
#include "cost_models/interval.h"
#include "cost_models/pipeline.h"

namespace millwright {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

std::string Figure(Bytes bytes) { return fmt::format("{:.1f}", bytes.value / kGiB); }

// What of the training choices is not the default, so that a table of numbers says what it is of.
std::string ChoicesText(const TrainingConfig& t) {
  std::string text = fmt::format("{} state, {}-bit gradients, {} B of Adam moments a parameter",
                                 t.state == StateScheme::kMegatron ? "Megatron" : "FSDP",
                                 8 * t.gradient_bytes, t.moment_bytes);
  const TrainingConfig standard;
  const auto note = [&](bool differs, std::string_view what) {
    if (differs) text += fmt::format(", {}", what);
  };
  if (t.framework != standard.framework) {
    text += fmt::format(", software {}", NameIn(FrameworkNames(), t.framework));
  }
  note(t.cuda_graph == CudaGraph::kPartial, "CUDA graphs of parts of a layer");
  note(t.cuda_graph == CudaGraph::kFull, "a CUDA graph of the iteration");
  note(!t.flash_attention, "no FlashAttention");
  note(t.fused_swiglu, "fused SwiGLU");
  note(t.fp8_activation_store, "FP8 activation store");
  note(t.fused_cross_entropy, "fused cross-entropy");
  note(t.tp_comm_overlap, "TP overlap");
  note(!t.cp_comm_overlap, "ring exchange not overlapped");
  note(t.expert_overlap, "expert overlap");
  note(!t.overlap_grad_reduce, "gradient reduction not overlapped");
  note(!t.overlap_param_gather, "parameter gathering not overlapped");
  note(!t.overlap_p2p, "pipeline sends not overlapped");
  note(t.moe_dispatcher != standard.moe_dispatcher, "DeepEP dispatch");
  if (t.moe_imbalance > 1) text += fmt::format(", expert imbalance {}", t.moe_imbalance);
  return text;
}

// Columns of a bar behind a table of 60.
int BarColumns(const Style& style) { return std::clamp(style.width - 60, 8, 40); }

}  // namespace

std::vector<int> LayersPerStage(const ModelConfig& model, const ParallelConfig& plan) {
  std::vector<int> layers;
  for (const StageContent& stage : StagesOfPlan(model, plan)) {
    layers.push_back(stage.total_layers);
  }
  return layers;
}

std::string LayersText(const std::vector<int>& layers) {
  const bool even = std::all_of(layers.begin(), layers.end(),
                                [&](int of_stage) { return of_stage == layers.front(); });
  return even ? std::to_string(layers.front()) : RunsOf(layers) + " (uneven)";
}

std::string_view Label(TimeItem item) {
  return item == TimeItem::kRecompute ? "recompute (with its communication)" : Name(item);
}

std::string BriefName(const ParallelConfig& p) {
  std::string name = fmt::format("tp{}", p.tensor);
  if (p.sequence_parallel) name += " sp";
  if (p.context > 1) {
    name += fmt::format(" cp{}{}", p.context, ContextSuffix(p));
  }
  name += fmt::format(" pp{}", p.pipeline);
  if (p.virtual_stages > 1) name += fmt::format(" vpp{}", p.virtual_stages);
  if (!p.stage_layers.empty()) name += fmt::format(" layers({})", RunsOf(p.stage_layers));
  if (!FollowsFromStages(p.schedule)) name += fmt::format(" {}", NameOf(p.schedule));
  name += fmt::format(" dp{}", p.data);
  if (p.expert > 1) name += fmt::format(" ep{}", p.expert);
  if (p.expert_tensor > 1) name += fmt::format(" etp{}", p.expert_tensor);
  name += fmt::format(" mbs{} zero{}", p.micro_batch_size, p.zero);
  if (p.zero_shard > 0) name += fmt::format("/{}", p.zero_shard);
  if (p.Recomputes() != std::vector{Recompute{}}) name += ' ' + RecomputeName(p);
  if (p.placed_otherwise()) name += " pp-dp";
  return name;
}

std::string GiB(Bytes bytes) {
  if (bytes == Bytes(0)) return "-";
  constexpr double kLeast = 0.1 * kGiB;  // below, one decimal says little
  if (bytes > Bytes(0) && bytes < Bytes(kLeast)) {
    return fmt::format("{:.1f} MiB", bytes.value * 1024 / kGiB);
  }
  return Figure(bytes) + " GiB";
}

std::string FormatRate(double tokens) {
  return tokens < 10 ? fmt::format("{:.2f}", tokens) : FormatInteger(std::llround(tokens));
}

std::string PerStep(Seconds seconds) {
  return seconds == Seconds(0) ? "-" : FormatSeconds(seconds);
}

std::string ResultSentence(const Estimate& e) {
  return fmt::format("{} a step, {} tokens/s/GPU, {} MFU, {} of {}", PerStep(e.step),
                     FormatRate(e.tokens_per_second_per_gpu), Percent(e.mfu), Figure(e.peak),
                     GiB(e.capacity));
}

std::string HostShortage(const Estimate& e) {
  return fmt::format("the activations that it offloads are {} a node, and its hosts have {}",
                     GiB(e.host), GiB(e.host_capacity));
}

std::string MissSentence(const Estimate& e, Bytes limit, const GpuSpec& gpu) {
  if (e.peak <= limit && !HostHolds(e.host, e.host_capacity)) return HostShortage(e);
  const StageMemory& stage = e.memory[std::size_t(e.peak_stage)];
  const MemoryItem largest = stage.largest();
  const std::string room = limit < e.capacity
                               ? fmt::format("the {} that the margin leaves of {}'s {}", GiB(limit),
                                             gpu.name, GiB(e.capacity))
                               : fmt::format("{}'s {}", gpu.name, GiB(e.capacity));
  return fmt::format("stage {} needs {}, {} more than {}; most of it is {} ({})", e.peak_stage,
                     GiB(e.peak), GiB(e.peak - limit), room, Name(largest), GiB(stage[largest]));
}

std::vector<std::pair<std::string, std::string>> QuestionRows(const Job& job) {
  const ModelConfig& m = job.model;
  const TrainingConfig& t = job.training;
  const ClusterConfig& c = job.cluster;
  const ParameterCount parameters = CountParameters(m);
  std::string size = fmt::format("{} parameters", FormatCount(double(parameters.total)));
  if (parameters.active != parameters.total) {
    size += fmt::format(", {} active", FormatCount(double(parameters.active)));
  }
  const double tokens = double(t.global_batch_size) * double(t.seq_length);
  std::vector<std::pair<std::string, std::string>> rows;
  rows.emplace_back("Model",
                    fmt::format("{}, {}, {}", m.name, size, Counted(m.num_layers, "layer")));
  rows.emplace_back("Cluster",
                    fmt::format("{} of {}, {} ({}, {})", Counted(c.nodes, "node"), c.name,
                                Counted(c.gpus(), "GPU"), c.gpu.name, GiB(c.gpu.hbm_capacity)));
  rows.emplace_back("Step", fmt::format("{} of {} tokens, {} tokens in all",
                                        Counted(t.global_batch_size, "sequence"),
                                        FormatInteger(t.seq_length), FormatCount(tokens)));
  rows.emplace_back("Training",
                    fmt::format("{}, {}", NameIn(PrecisionNames(), t.precision), ChoicesText(t)));
  if (const FlopsPerSecond peak = c.gpu.peak(t.precision); peak > FlopsPerSecond(0)) {
    rows.emplace_back(
        "MFU counts",
        fmt::format("{} attention, against {} dense",
                    t.mfu_convention == MfuConvention::kCausal ? "causal (half)" : "full",
                    FormatFlopRate(peak)));
  }
  if (!c.gpu.calibration_file.empty()) {
    rows.emplace_back("Efficiency", fmt::format("measured: {}", c.gpu.calibration_file));
  } else if (!c.gpu.measured()) {
    rows.emplace_back(
        "Efficiency",
        fmt::format("H100's fractions of the datasheet: no measurements for {}", c.gpu.name));
  }
  return rows;
}

std::string QuestionText(const Job& job, const Style& style, const std::string& search) {
  TextTable table;
  table.Column("", Align::kLeft);
  table.Column("", Align::kLeft);
  for (const auto& [what, asked] : QuestionRows(job)) table.Row({what, asked});
  if (!search.empty()) table.Row({"Search", search});
  return table.Text(style);
}

std::string PlanText(const Job& job, const Estimate& e, const Style& style) {
  const ParallelConfig& p = e.plan;
  const ModelConfig& model = job.model;
  TextTable table;
  table.Column("", Align::kLeft);
  table.Column("", Align::kLeft);
  table.Row(
      {"Tensor parallel",
       fmt::format("{}{}", p.tensor, p.sequence_parallel ? ", with sequence parallelism" : "")});
  if (p.context > 1) {
    table.Row({"Context parallel", fmt::format("{}, {}{}", p.context,
                                               NameIn(ContextParallelKindNames(), p.context_kind),
                                               p.context_kind == ContextParallelKind::kNested
                                                   ? fmt::format(": Ulysses of {} in a ring of {}",
                                                                 p.ulysses_ranks(), p.ring_ranks())
                                                   : "")});
  }
  table.Row({"Pipeline parallel",
             p.pipeline == 1
                 ? "1"
                 : fmt::format("{}, {} schedule{}", p.pipeline, std::string(NameOf(p.schedule)),
                               p.virtual_stages > 1
                                   ? fmt::format(", {} virtual stages a rank", p.virtual_stages)
                                   : "")});
  if (p.pipeline > 1) table.Row({"Layers a stage", LayersText(LayersPerStage(model, p))});
  table.Row({"Data parallel",
             fmt::format("{}, ZeRO {}{}", p.data, p.zero,
                         p.zero_shard > 0 ? fmt::format(" over {} ranks", p.zero_shard) : "")});
  if (p.placed_otherwise()) {
    table.Row({"Order of ranks", std::string(NameIn(RankOrderNames(), p.order))});
  }
  if (p.expert > 1 || p.expert_tensor > 1) {
    table.Row({"Expert parallel",
               fmt::format("{}, expert tensor parallel {}", p.expert, p.expert_tensor)});
  }
  table.Row({"Micro-batches", fmt::format("{} of {}", FormatInteger(e.micro_batches),
                                          Counted(p.micro_batch_size, "sequence"))});
  Recompute on_gpu = p.recompute;
  on_gpu.offload_layers = 0;
  table.Row({"Recompute", p.rank_recompute.empty() ? ShortName(on_gpu)
                                                   : RecomputeName(p) + ", by pipeline rank"});
  if (p.Offloads()) {
    const std::string of =
        e.host_capacity.value > 0 ? fmt::format(" of {}", GiB(e.host_capacity)) : std::string();
    const std::string layers =
        p.recompute.offload_layers > 0
            ? fmt::format("{} of each {}, ", Counted(p.recompute.offload_layers, "layer"),
                          p.virtual_stages > 1 ? "virtual stage" : "stage")
            : std::string();
    table.Row({"Offloaded", fmt::format("{}{}{} of host memory a node", layers, GiB(e.host), of)});
  }
  table.Row({"Speed",
             fmt::format("{} tokens/s/GPU, {} of the model, MFU {}, HFU {}",
                         FormatRate(e.tokens_per_second_per_gpu),
                         FormatFlopRate(e.model_flops_per_gpu), Percent(e.mfu), Percent(e.hfu))});
  const RunClass kind = ClassOf(model, job.training, job.cluster.gpu);
  const Interval step = StepInterval(kind), memory = MemoryInterval();
  table.Row({"90% interval",
             fmt::format("{} to {} a step, {} to {}, by published runs ({})",
                         PerStep(step.low * e.step), PerStep(step.high * e.step),
                         GiB(memory.low * e.peak), GiB(memory.high * e.peak), Name(kind))});
  return table.Text(style, 2);
}

std::string TimeText(const Estimate& e, const Style& style) {
  TextTable table;
  table.Column(e.memory.size() == 1
                   ? "Time of a step"
                   : fmt::format("Time of a step, slowest stage {}", e.slowest_stage),
               Align::kLeft);
  table.Column(PerStep(e.step));
  table.Column("share");
  table.Column("", Align::kLeft);
  for (int i = 0; i < kTimeItems; ++i) {
    const auto item = static_cast<TimeItem>(i);
    if (e.time[item] == Seconds(0)) continue;
    const double share = e.time[item] / e.step;
    table.Row({std::string("  ").append(Label(item)), PerStep(e.time[item]), Percent(share),
               Bar(share, BarColumns(style))});
    if (item == TimeItem::kCompute) {
      // What a perfect machine would take for the whole step.
      table.Row({"    of it the model's FLOPs at the peak", PerStep(e.mfu * e.step), Percent(e.mfu),
                 Bar(e.mfu, BarColumns(style))});
    }
  }
  return table.Text(style);
}

std::string MemoryText(const Estimate& e, const Style& style) {
  const StageMemory& fullest = e.memory[std::size_t(e.peak_stage)];
  TextTable items;
  items.Column(e.memory.size() == 1 ? "Memory of each GPU"
                                    : fmt::format("Memory of the fullest stage, {}", e.peak_stage),
               Align::kLeft);
  items.Column(GiB(e.peak));
  items.Column("of peak");
  items.Column("", Align::kLeft);
  for (int i = 0; i < kMemoryItems; ++i) {
    const auto item = static_cast<MemoryItem>(i);
    if (fullest[item] == Bytes(0)) continue;
    const double share = fullest[item] / e.peak;
    items.Row({std::string("  ").append(Name(item)), GiB(fullest[item]), Percent(share),
               Bar(share, BarColumns(style))});
  }
  std::string text = items.Text(style);
  if (e.memory.size() == 1) return text;

  // Stages in runs of equal bytes; of many runs those that say most.
  struct Run {
    std::size_t first, last;
  };
  std::vector<Run> runs;
  for (std::size_t i = 0; i < e.memory.size(); ++i) {
    if (!runs.empty() && e.memory[i].items == e.memory[runs.back().first].items) {
      runs.back().last = i;
    } else {
      runs.push_back({i, i});
    }
  }
  constexpr std::size_t kMostRuns = 8;
  std::set<std::size_t> shown;
  if (runs.size() <= kMostRuns) {
    for (std::size_t i = 0; i < runs.size(); ++i) shown.insert(i);
  } else {
    for (std::size_t i = 0; i < kMostRuns - 1; ++i) {
      shown.insert(i * (runs.size() - 1) / (kMostRuns - 2));
    }
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].first <= std::size_t(e.peak_stage) && std::size_t(e.peak_stage) <= runs[i].last) {
        shown.insert(i);
      }
    }
  }
  TextTable stages;
  stages.Column("Stage, GiB", Align::kLeft);
  for (const char* title : {"weights", "gradients", "optimizer", "activations", "logits",
                            "working set", "other", "total", "free"}) {
    stages.Column(title);
  }
  for (std::size_t i : shown) {
    const StageMemory& m = e.memory[runs[i].first];
    const Bytes named = m[MemoryItem::kWeights] + m[MemoryItem::kGradients] +
                        m[MemoryItem::kOptimizer] + m[MemoryItem::kActivations] +
                        m[MemoryItem::kLogits] + m[MemoryItem::kWorkingSet];
    stages.Row({runs[i].first == runs[i].last ? fmt::format("  {}", runs[i].first)
                                              : fmt::format("  {}-{}", runs[i].first, runs[i].last),
                Figure(m[MemoryItem::kWeights]), Figure(m[MemoryItem::kGradients]),
                Figure(m[MemoryItem::kOptimizer]), Figure(m[MemoryItem::kActivations]),
                Figure(m[MemoryItem::kLogits]), Figure(m[MemoryItem::kWorkingSet]),
                Figure(m.total() - named), Figure(m.total()), Figure(e.capacity - m.total())});
  }
  stages.DropIfAll("logits", "0.0");
  for (const char* title : {"working set", "other", "logits"}) stages.DropIfWide(title, style);
  text += '\n' + stages.Text(style);
  if (shown.size() < runs.size()) {
    text +=
        fmt::format("  ({} of {} different stages; --json has all)\n", shown.size(), runs.size());
  }
  return text;
}

std::string EstimateText(const Job& job, const Estimate& e, const Style& style) {
  std::string text;
  if (e.fits()) {
    text =
        Bold(Wrapped(fmt::format("{}: {}.", BriefName(e.plan), ResultSentence(e)), style.width, 0),
             style);
  } else {
    text = Bold(Wrapped(fmt::format("{} does not fit: {}.", BriefName(e.plan),
                                    MissSentence(e, e.capacity, job.cluster.gpu)),
                        style.width, 0),
                style);
  }
  text += "\n\n" + QuestionText(job, style) + '\n';
  text += Bold(e.fits() ? "The plan" : "The plan, if the memory were there", style) + '\n';
  text += PlanText(job, e, style) + '\n' + TimeText(e, style) + '\n' + MemoryText(e, style);
  return text;
}

}  // namespace millwright
