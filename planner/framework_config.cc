// SPDX-License-Identifier: Apache-2.0
#include "planner/framework_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/json_value.h"
#include "core/mistakes.h"
#include "core/toml.h"

namespace millwright {
namespace {

constexpr std::int64_t kMostBatch = std::int64_t{1} << 30;
constexpr std::int64_t kMostDegree = 1 << 20;

// Values by their place, noting what is wrong with them and what was never asked for.
class ConfigTree {
 public:
  ConfigTree(const std::string& file, JsonValue root) : mistakes_(file), root_(std::move(root)) {}

  Mistakes& mistakes() { return mistakes_; }
  const JsonValue* Find(std::string_view section, std::string_view key) {
    asked_.push_back(fmt::format("{}/{}", section, key));
    const JsonValue* table = section.empty() ? &root_ : root_.find(section);
    return table == nullptr ? nullptr : table->find(key);
  }
  static std::string Pointer(std::string_view section, std::string_view key) {
    return section.empty() ? PointerTo("", key) : PointerTo(PointerTo("", section), key);
  }
  void Expected(std::string_view section, std::string_view key, std::string_view what) {
    const JsonValue* value = Find(section, key);
    mistakes_.Add(Pointer(section, key),
                  fmt::format("expected {}, got {}", what,
                              value == nullptr ? std::string("nothing") : Quote(*value)));
  }
  // Empty where it is not there; "auto" and null are as good as that.
  std::optional<std::int64_t> Int(std::string_view section, std::string_view key, IntRange range) {
    const JsonValue* value = Find(section, key);
    if (value == nullptr || value->kind == JsonValue::Kind::kNull) return {};
    if (value->kind == JsonValue::Kind::kText && value->text == "auto") return {};
    if (value->kind == JsonValue::Kind::kInteger && value->integer >= range.min &&
        value->integer <= range.max) {
      return value->integer;
    }
    Expected(section, key, fmt::format("an integer from {} to {}", range.min, range.max));
    return {};
  }
  bool Bool(std::string_view section, std::string_view key, bool otherwise) {
    const JsonValue* value = Find(section, key);
    if (value == nullptr || value->kind == JsonValue::Kind::kNull) return otherwise;
    if (value->kind == JsonValue::Kind::kText && value->text == "auto") return otherwise;
    if (value->kind == JsonValue::Kind::kBool) return value->boolean;
    Expected(section, key, "true or false");
    return otherwise;
  }
  // One of `words`, empty where it is not there.
  std::string Choice(std::string_view section, std::string_view key,
                     std::initializer_list<std::string_view> words) {
    const JsonValue* value = Find(section, key);
    if (value == nullptr || value->kind == JsonValue::Kind::kNull) return {};
    if (value->kind == JsonValue::Kind::kText &&
        std::find(words.begin(), words.end(), value->text) != words.end()) {
      return value->text;
    }
    std::string what = fmt::format("one of {}", fmt::join(words, ", "));
    if (value->kind == JsonValue::Kind::kText) {
      const std::string_view nearest =
          NearestName(value->text, std::span(words.begin(), words.size()));
      if (!nearest.empty()) {
        mistakes_.Add(
            Pointer(section, key),
            fmt::format("expected {}, got {}; did you mean \"{}\"?", what, Quote(*value), nearest));
        return {};
      }
    }
    Expected(section, key, what);
    return {};
  }
  // Keys that were not asked for, "optimizer/lr".
  std::vector<std::string> Ignored() const {
    std::vector<std::string> ignored;
    for (const JsonMember& member : root_.members) {
      if (member.value.kind != JsonValue::Kind::kObject) {
        Note("", member.key, ignored);
        continue;
      }
      for (const JsonMember& inside : member.value.members) Note(member.key, inside.key, ignored);
    }
    return ignored;
  }

 private:
  void Note(std::string_view section, std::string_view key,
            std::vector<std::string>& ignored) const {
    const std::string name = fmt::format("{}/{}", section, key);
    if (std::find(asked_.begin(), asked_.end(), name) != asked_.end()) return;
    ignored.push_back(Printable(section.empty() ? std::string(key) : name, kMostNameShown));
  }

  Mistakes mistakes_;
  const JsonValue root_;
  std::vector<std::string> asked_;
};

template <class T>
void Set(T& field, const std::optional<std::int64_t>& value) {
  if (value) field = static_cast<T>(*value);
}

struct TorchSchedule {
  std::string_view name;
  ScheduleKind kind;
  int chunks;  // of a rank where nobody says
};
constexpr TorchSchedule kTorchSchedules[] = {
    {"1F1B", ScheduleKind::k1F1B, 1},
    {"GPipe", ScheduleKind::kGpipe, 1},
    {"Interleaved1F1B", ScheduleKind::kInterleaved, 2},
    {"LoopedBFS", ScheduleKind::kBreadthFirst, 2},
    {"InterleavedZeroBubble", ScheduleKind::kZbH1, 1},
    {"ZBVZeroBubble", ScheduleKind::kZbV, 1},  // whose two chunks are its own
    {"DualPipeV", ScheduleKind::kDualPipeV, 1},
};

void TorchPipeline(ConfigTree& tree, ImportedRun& run) {
  constexpr std::string_view kSection = "parallelism";
  ParallelConfig& p = run.job.parallel;
  Set(p.pipeline, tree.Int(kSection, "pipeline_parallel_degree", {1, kMostDegree}));
  const std::string name = tree.Choice(kSection, "pipeline_parallel_schedule",
                                       {"1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS",
                                        "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"});
  const JsonValue* parts = tree.Find(kSection, "module_fqns_per_model_part");
  const JsonValue* csv = tree.Find(kSection, "pipeline_parallel_schedule_csv");
  const auto micro = tree.Int(kSection, "pipeline_parallel_microbatch_size", {1, kMostDegree});
  if (p.pipeline == 1) return;
  p.micro_batch_size = int(micro.value_or(1));
  for (const TorchSchedule& s : kTorchSchedules) {
    if (s.name != (name.empty() ? "1F1B" : std::string_view(name))) continue;
    p.schedule = s.kind;
    p.virtual_stages = s.chunks;
    if (parts == nullptr || parts->kind != JsonValue::Kind::kArray) continue;
    const std::size_t stages = parts->items.size();
    if (stages == 0 || stages % std::size_t(p.pipeline) != 0 || stages > kMostDegree) {
      tree.mistakes().Add(
          ConfigTree::Pointer(kSection, "module_fqns_per_model_part"),
          fmt::format("{} parts cannot be shared out evenly among {} ranks", stages, p.pipeline));
    } else if (s.chunks == 2 || stages / std::size_t(p.pipeline) > 2) {
      p.virtual_stages = int(stages / std::size_t(p.pipeline));
    }
    // "layers.7" and the like are layers; what else a part has is embedding, norm and head.
    for (const JsonValue& part : parts->items) {
      p.stage_layers.push_back(
          int(std::count_if(part.items.begin(), part.items.end(), [](const JsonValue& module) {
            return module.kind == JsonValue::Kind::kText && module.text.starts_with("layers.");
          })));
    }
    if (std::count(p.stage_layers.begin(), p.stage_layers.end(), p.stage_layers.front()) ==
        std::ptrdiff_t(stages)) {
      p.stage_layers.clear();
    }
  }
  if (p.virtual_stages == 1 && p.schedule == ScheduleKind::kInterleaved) {
    p.schedule = ScheduleKind::k1F1B;
  }
  if (csv != nullptr && csv->kind == JsonValue::Kind::kText && !csv->text.empty()) {
    run.warnings.emplace_back(
        "parallelism.pipeline_parallel_schedule_csv: the order in it is not read; costed as "
        "pipeline_parallel_schedule");
  }
}

void TorchData(ConfigTree& tree, ImportedRun& run) {
  constexpr std::string_view kSection = "parallelism";
  ParallelConfig& p = run.job.parallel;
  Set(p.tensor, tree.Int(kSection, "tensor_parallel_degree", {1, kMostDegree}));
  p.sequence_parallel = p.tensor > 1;
  Set(p.context, tree.Int(kSection, "context_parallel_degree", {1, kMostDegree}));
  if (tree.Choice(kSection, "context_parallel_rotate_method", {"allgather", "alltoall"}) !=
          "alltoall" &&
      p.context > 1) {
    run.warnings.emplace_back(
        "parallelism.context_parallel_rotate_method: allgather is costed as a ring");
  }
  Set(p.expert, tree.Int(kSection, "expert_parallel_degree", {1, kMostDegree}));
  const auto expert_tensor = tree.Int(kSection, "expert_tensor_parallel_degree", {1, kMostDegree});
  if (p.expert > 1) Set(p.expert_tensor, expert_tensor);  // without effect at ep 1
  const std::string backend =
      tree.Choice(kSection, "expert_parallel_comm_backend", {"standard", "deepep"});
  if (backend == "deepep" && p.expert > 1) {
    run.job.training.moe_dispatcher = MoeDispatcher::kDeepEp;
  }
  // On by default, and of DualPipeV alone.
  run.job.training.expert_overlap =
      tree.Bool(kSection, "pipeline_parallel_expert_parallel_overlap", true) &&
      p.schedule == ScheduleKind::kDualPipeV && p.pipeline > 1 && p.expert > 1;
  Set(run.optimizer_instances,
      tree.Int(kSection, "data_parallel_replicate_degree", {1, kMostDegree}));
  const auto shard = tree.Int(kSection, "data_parallel_shard_degree", {-1, kMostDegree});
  if (shard == 0) tree.Expected(kSection, "data_parallel_shard_degree", "-1 or at least 1");
  if (shard && *shard > 0) {
    const double gpus =
        1.0 * double(*shard) * double(run.optimizer_instances) * p.tensor * p.context * p.pipeline;
    if (gpus <= kMaxGpus) run.gpus = std::int64_t(gpus);
  }
  const std::string reshard =
      tree.Choice(kSection, "fsdp_reshard_after_forward", {"default", "always", "never"});
  // By default weights stay gathered under a pipeline (torchtitan/models/llama3/infra/parallelize).
  const bool always =
      reshard == "always" || ((reshard.empty() || reshard == "default") && p.pipeline == 1);
  p.zero = always ? 3 : 2;
  if (shard == 1 && p.context == 1) {
    p.zero = 0;
    run.optimizer_instances = 1;
  }
}

void TorchRecompute(ConfigTree& tree, ImportedRun& run) {
  constexpr std::string_view kSection = "activation_checkpoint";
  Recompute& r = run.job.parallel.recompute;
  const std::string mode =
      tree.Choice(kSection, "mode", {"none", "selective", "full", "memory_budget"});
  const JsonValue* option = tree.Find(kSection, "selective_ac_option");
  if (mode == "none") return;
  if (mode == "full") {
    r.granularity = RecomputeGranularity::kFull;
    return;
  }
  // Torchtitan's default is selective, of every second layer.
  const std::string which =
      option != nullptr && option->kind == JsonValue::Kind::kText      ? option->text
      : option != nullptr && option->kind == JsonValue::Kind::kInteger ? option->text
                                                                       : "2";
  r.granularity = RecomputeGranularity::kSelective;
  r.modules = {RecomputeModule::kMlp, RecomputeModule::kLayerNorm};
  run.warnings.push_back(fmt::format(
      "activation_checkpoint: {} is costed as selective(mlp,layernorm)",
      mode == "memory_budget" ? std::string("memory_budget, what the compiler chooses,")
      : which == "op"
          ? std::string("selective, by operator,")
          : fmt::format("selective, every {} layers,", Printable(which, kMostNameShown))));
}

}  // namespace

ImportedRun ReadTorchtitan(const std::string& file, std::string_view text) {
  ConfigTree tree(file, ParseToml(file, text));
  ImportedRun run;
  TrainingConfig& t = run.job.training;
  t = {};
  ParallelConfig& p = run.job.parallel;
  TorchPipeline(tree, run);
  TorchData(tree, run);
  TorchRecompute(tree, run);
  t.seq_length = tree.Int("training", "seq_len", {1, kMostBatch}).value_or(2048);  // its default
  const std::int64_t local =
      tree.Int("training", "local_batch_size", {1, kMostBatch}).value_or(8);  // its default
  if (p.pipeline == 1) {
    p.micro_batch_size = int(std::min(local, kMostDegree));
  } else {
    run.batch_per_replica = local;
  }
  const auto global = tree.Int("training", "global_batch_size", {-1, kMostBatch});
  if (global && *global > 0) t.global_batch_size = *global;
  const bool compile =
      tree.Bool("training", "compile", false) || tree.Bool("compile", "enable", false);
  t.framework = compile ? Framework::kFsdpCompiled : Framework::kFsdp;
  t.state = StateScheme::kFsdp;
  t.tp_comm_overlap = tree.Bool("parallelism", "enable_async_tensor_parallel", false);
  if (const JsonValue* converters = tree.Find("model", "converters")) {
    std::vector<std::string> names;
    if (converters->kind == JsonValue::Kind::kText) names.push_back(converters->text);
    for (const JsonValue& one : converters->items) names.push_back(one.text);
    for (const std::string& name : names) {
      // The short names are those up to August 2025.
      if (name == "float8" || name == "quantize.linear.float8") t.precision = Precision::kFp8;
      if (name == "mx" || name == "quantize.linear.mx") t.precision = Precision::kMxfp8;
    }
  }
  tree.mistakes().ThrowIfAny();
  run.ignored = tree.Ignored();
  run.job.has_training = run.job.has_parallel = true;
  return run;
}

ImportedRun ReadDeepSpeed(const std::string& file, std::string_view text) {
  Mistakes duplicates(file);
  JsonValue root = ParseJson(file, text, duplicates);
  duplicates.ThrowIfAny();
  ConfigTree tree(file, std::move(root));
  ImportedRun run;
  TrainingConfig& t = run.job.training;
  t = {};
  ParallelConfig& p = run.job.parallel;
  const auto train = tree.Int("", "train_batch_size", {1, kMostBatch});
  const auto micro = tree.Int("", "train_micro_batch_size_per_gpu", {1, kMostDegree});
  const auto passes = tree.Int("", "gradient_accumulation_steps", {1, kMostBatch});
  Set(t.global_batch_size, train);
  Set(p.micro_batch_size, micro);
  run.batch_per_replica = p.micro_batch_size * passes.value_or(1);
  if (train && micro && passes) {
    // Train = micro x passes x ranks, or DeepSpeed refuses it.
    if (*train % (*micro * *passes) != 0) {
      tree.mistakes().Add("/train_batch_size",
                          fmt::format("{} is not a multiple of {} x {} (micro-batch x "
                                      "gradient_accumulation_steps)",
                                      *train, *micro, *passes));
    } else if (const std::int64_t ranks = *train / (*micro * *passes); ranks <= kMaxGpus) {
      run.gpus = ranks;  // as many as there are if the program divides no model
    }
  }
  Set(p.zero, tree.Int("zero_optimization", "stage", {0, 3}));
  const auto shard = tree.Int("zero_optimization", "mics_shard_size", {-1, kMostDegree});
  if (shard && *shard > 0 && p.zero == 3 && run.gpus && *run.gpus % *shard == 0) {
    run.optimizer_instances = int(*run.gpus / *shard);
  }
  const bool bf16 = tree.Bool("bf16", "enabled", false);
  const bool fp16 = tree.Bool("fp16", "enabled", false);
  if (bf16 && fp16) tree.mistakes().Add("/fp16/enabled", "contradicts /bf16/enabled");
  t.precision = fp16 ? Precision::kFp16 : Precision::kBf16;
  if (!bf16 && !fp16) run.warnings.emplace_back("neither bf16 nor fp16 is enabled; costed as bf16");
  const std::string gradients =
      tree.Choice("data_types", "grad_accum_dtype", {"fp32", "fp16", "bf16"});
  // Without a type of their own gradients have that of the weights.
  t.gradient_bytes = gradients == "fp32" ? 4 : 2;
  t.overlap_grad_reduce = t.overlap_param_gather =
      tree.Bool("zero_optimization", "overlap_comm", p.zero == 3);
  for (const char* offload : {"offload_optimizer", "offload_param"}) {
    if (tree.Find("zero_optimization", offload) != nullptr) {
      run.warnings.push_back(
          fmt::format("zero_optimization.{} is not modelled: state is costed on the GPU", offload));
    }
  }
  tree.mistakes().ThrowIfAny();
  run.ignored = tree.Ignored();
  run.job.has_training = run.job.has_parallel = true;
  return run;
}

}  // namespace millwright
