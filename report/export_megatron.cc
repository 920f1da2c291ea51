// SPDX-License-Identifier: Apache-2.0
//
// Megatron-LM's arguments as a shell array, and the same as Megatron-Bridge's configuration.
//
// Bridge's names: NVIDIA-NeMo/Megatron-Bridge, docs/megatron-lm-to-megatron-bridge.md at commit
// 167ba2ad3210 (2026); training/config.py at 003e863ad19f (2026), training/mixed_precision.py at
// d9f7643bb960, training/comm_overlap.py at 0685ff5d5e63 and models/gpt_provider.py at 0254ddd44183
// of src/megatron/bridge.  An option that is not in the table below has the same name there, under
// `model`.  A YAML's key that there is not is skipped with a warning (training/utils/
// omegaconf_utils.py at 158aa4e28957).

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/unit_text.h"
#include "report/export_notes.h"
#include "report/megatron_settings.h"

namespace millwright {
namespace {

// As a word of a shell.
std::string Quoted(const std::string& value) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == ',';
  };
  // None of the values holds a quotation mark: they are numbers, names and patterns of ours.
  return std::all_of(value.begin(), value.end(), plain) ? value : fmt::format("'{}'", value);
}

struct BridgeKey {
  std::string_view option;
  std::string_view keys;        // those to set, divided by blanks
  std::string_view value = {};  // empty: the option's own, or true
};
constexpr BridgeKey kBridgeKeys[] = {
    {"--num-experts", "model.num_moe_experts"},
    {"--seq-length", "model.seq_length dataset.seq_length"},
    {"--group-query-attention", ""},  // follows from the number of groups
    {"--disable-bias-linear", "model.add_bias_linear", "false"},
    {"--untie-embeddings-and-output-weights", "model.share_embeddings_and_output_weights", "false"},
    {"--max-position-embeddings", ""},  // it is the sequence length
    {"--attention-backend", ""},        // an AttnBackend of Python's; by itself it is one that fits
    {"--use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping"},
    {"--micro-batch-size", "train.micro_batch_size"},
    {"--global-batch-size", "train.global_batch_size"},
    {"--use-distributed-optimizer",
     "ddp.use_distributed_optimizer optimizer.use_distributed_optimizer"},
    {"--num-distributed-optimizer-instances", "ddp.num_distributed_optimizer_instances"},
    {"--use-megatron-fsdp", "ddp.use_megatron_fsdp dist.use_megatron_fsdp"},
    {"--data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy"},
    {"--no-gradient-accumulation-fusion", "model.gradient_accumulation_fusion", "false"},
    {"--ckpt-format", "checkpoint.ckpt_format"},
    {"--overlap-grad-reduce", ""},  // by default they are on, so that both are always written
    {"--overlap-param-gather", ""},
    {"--tp-comm-overlap", "comm_overlap.tp_comm_overlap"},
    {"--no-overlap-p2p-communication", "comm_overlap.overlap_p2p_comm", "false"},
    {"--overlap-moe-expert-parallel-comm", "comm_overlap.overlap_moe_expert_parallel_comm"},
    {"--num-virtual-stages-per-pipeline-rank", "model.virtual_pipeline_model_parallel_size"},
    {"--moe-enable-deepep", "model.moe_flex_dispatcher_backend", "deepep"},
    {"--use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer"},
    {"--exp-avg-dtype", "optimizer.exp_avg_dtype"},
    {"--exp-avg-sq-dtype", "optimizer.exp_avg_sq_dtype"},
    // What the preset of mixed precision decides.
    {"--bf16", ""},
    {"--fp16", ""},
    {"--fp8-format", ""},
    {"--fp8-recipe", ""},
    {"--fp4-format", ""},
    {"--fp4-recipe", ""},
    {"--fp8-param-gather", ""},
    {"--fp4-param-gather", ""},
    {"--reuse-grad-buf-for-mxfp8-param-ag", ""},
    {"--grad-reduce-in-bf16", ""},
    {"--accumulate-allreduce-grads-in-fp32", ""},
    {"--no-check-for-nan-in-loss-and-grad",
     "rerun_state_machine.check_for_nan_in_loss ddp.check_for_nan_in_grad", "false"},
};

std::string_view PrecisionPreset(Precision precision) {
  switch (precision) {
    case Precision::kFp16:
      return "fp16_mixed";
    case Precision::kBf16:
      return "bf16_mixed";
    case Precision::kFp8:
      return "bf16_with_fp8_current_scaling_mixed";
    case Precision::kMxfp8:
      return "bf16_with_mxfp8_mixed";
    case Precision::kNvfp4:
      return "bf16_with_nvfp4_mixed";
  }
  return {};
}

std::string_view ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return "silu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kRelu:
      return "relu";
    case Activation::kSquaredRelu:
      return "squared_relu";
  }
  return {};
}

// The name of the type of PyTorch for which the command line has a word (arguments.py).
std::string_view TorchType(std::string_view word) {
  if (word == "bf16") return "torch.bfloat16";
  if (word == "fp16") return "torch.float16";
  return word == "fp8" ? "torch.uint8" : "torch.float32";
}

bool IsNumber(const std::string& value) {
  return !value.empty() && value.find_first_not_of("0123456789.") == std::string::npos;
}

std::string YamlValue(const MegatronSetting& setting) {
  if (setting.values.empty()) return "true";
  const auto scalar = [](const std::string& value) {
    return IsNumber(value) ? value : fmt::format("\"{}\"", value);
  };
  // Python takes a list where the command line takes words or a pattern.
  const bool list = setting.option == "--recompute-modules" ||
                    setting.option == "--hierarchical-context-parallel-sizes";
  if (setting.option == "--moe-layer-freq" || setting.option == "--window-attn-skip-freq") {
    return setting.values.front();  // a list as it is
  }
  if (setting.option == "--exp-avg-dtype" || setting.option == "--exp-avg-sq-dtype") {
    return fmt::format("\"{}\"", TorchType(setting.values.front()));
  }
  if (setting.option == "--window-size") {
    return fmt::format("[{}]", setting.values.front());
  }
  if (!list) return scalar(setting.values.front());
  std::string text = "[";
  for (const std::string& value : setting.values) {
    text += fmt::format("{}{}", text.size() > 1 ? ", " : "", scalar(value));
  }
  return text + ']';
}

// What presets of mixed precision, which overwrite the model's own fields, do otherwise.
void PresetNotes(const Job& job, bool overlaps, ExportNotes& notes) {
  const TrainingConfig& t = job.training;
  if (t.gradient_bytes == 2 && t.precision != Precision::kFp16) {
    notes.Cannot("training.gradient_bytes",
                 "the preset of mixed precision has fp32 gradients; in Python, set "
                 "cfg.mixed_precision.grad_reduce_in_fp32 = False");
  }
  if (t.precision == Precision::kFp8) {
    notes.Cannot("training.precision",
                 "the preset keeps the first and the last layer in BF16; in Python, set "
                 "cfg.mixed_precision.first_last_layers_bf16 = False");
  }
  const bool gathered = t.precision == Precision::kFp8 || t.precision == Precision::kMxfp8;
  if (gathered && t.bf16_weights) {
    notes.Cannot("training.bf16_weights",
                 "the preset keeps weights quantised; in Python, set "
                 "cfg.mixed_precision.fp8_param_gather = False");
  } else if (t.precision == Precision::kNvfp4 && !t.bf16_weights) {
    notes.Cannot("training.bf16_weights", "the preset keeps BF16 weights");
  } else if (t.precision == Precision::kMxfp8 && !overlaps && !WrittenAsFsdp(job.parallel)) {
    notes.Cannot("training.overlap_param_gather",
                 "the preset of MXFP8 asserts both overlaps; in Python, set "
                 "cfg.mixed_precision.fp8_param_gather and reuse_grad_buf_for_mxfp8_param_ag to "
                 "False");
  }
  if (!t.flash_attention) {
    notes.Cannot("training.flash_attention",
                 "in Python, set cfg.model.attention_backend = AttnBackend.unfused");
  }
}

// Topic by topic, and in each as they come.
using YamlTree = std::map<std::string, std::vector<std::pair<std::string, std::string>>>;

void AddKeys(YamlTree& tree, std::string_view keys, const std::string& value) {
  while (!keys.empty()) {
    const std::string_view key = keys.substr(0, keys.find(' '));
    keys.remove_prefix(std::min(keys.size(), key.size() + 1));
    const std::size_t dot = key.find('.');
    tree[std::string(key.substr(0, dot))].emplace_back(key.substr(dot + 1), value);
  }
}

}  // namespace

void ExportMegatron(const Job& job, Exported& exported) {
  ExportNotes notes(ExportFormat::kMegatron, exported);
  const std::vector<MegatronSetting> settings = MegatronSettings(job, notes);
  std::string text = notes.Head(job, "Megatron-LM arguments", kMegatronSpelling,
                                "Use: source this file in bash, and pass \"${MEGATRON_ARGS[@]}\" "
                                "to pretrain_gpt.py with your "
                                "data, tokenizer, optimizer and checkpoint options, and with "
                                "what costs neither time nor memory: RoPE's base and scaling, "
                                "epsilons, the router's scaling.");
  const Hosts hosts = HostsOf(job.cluster);
  text += fmt::format("\nNNODES={}\nGPUS_PER_NODE={}\nMEGATRON_ARGS=(", hosts.count, hosts.gpus);
  std::string_view topic;
  for (const MegatronSetting& s : settings) {
    if (s.topic != topic) text += fmt::format("\n  # {}", topic = s.topic);
    text += fmt::format("\n  {}", s.option);
    for (const std::string& value : s.values) text += ' ' + Quoted(value);
  }
  notes.AddFile("megatron_args.sh", text + "\n)\n");
}

void ExportBridge(const Job& job, Exported& exported) {
  ExportNotes notes(ExportFormat::kBridge, exported);
  YamlTree tree;
  for (const MegatronSetting& s : MegatronSettings(job, notes)) {
    const auto* key = std::find_if(std::begin(kBridgeKeys), std::end(kBridgeKeys),
                                   [&](const BridgeKey& k) { return k.option == s.option; });
    if (s.option == "--use-tp-pp-dp-mapping" && !job.parallel.placed_otherwise()) {
      continue;  // which makes no difference, and Megatron-FSDP refuses it
    }
    if (key != std::end(kBridgeKeys)) {
      AddKeys(tree, key->keys, key->value.empty() ? YamlValue(s) : std::string(key->value));
    } else if (s.option == "--cpu-offloading-num-layers") {
      AddKeys(tree, "model.cpu_offloading", "true");
      AddKeys(tree, "model.cpu_offloading_num_layers", YamlValue(s));
    } else {
      std::string name = "model." + std::string(s.option.substr(2));
      std::replace(name.begin(), name.end(), '-', '_');
      AddKeys(tree, name, YamlValue(s));
    }
    if (s.option == "--pipeline-model-parallel-layout" && job.parallel.virtual_stages > 1) {
      AddKeys(tree, "model.virtual_pipeline_model_parallel_size",
              fmt::format("{}", job.parallel.virtual_stages));
    }
  }
  AddKeys(tree, "model.gated_linear_unit", job.model.gated_linear_unit ? "true" : "false");
  AddKeys(tree, "model.activation_func", std::string(ActivationName(job.model.activation)));
  AddKeys(tree, "model.should_pad_vocab", "true");
  const TrainingConfig& t = job.training;
  const bool gathers = job.parallel.zero >= 1 && t.overlap_grad_reduce && t.overlap_param_gather;
  AddKeys(tree, "ddp.overlap_grad_reduce comm_overlap.overlap_grad_reduce",
          t.overlap_grad_reduce ? "true" : "false");
  AddKeys(tree, "ddp.overlap_param_gather comm_overlap.overlap_param_gather",
          gathers ? "true" : "false");
  if (t.cuda_graph != CudaGraph::kNone) {
    AddKeys(tree, "model.use_te_rng_tracker rng.te_rng_tracker", "true");
  }
  PresetNotes(job, gathers, notes);
  std::string text = notes.Head(
      job, "Megatron-Bridge overrides",
      "NVIDIA-NeMo/Megatron-Bridge, docs/megatron-lm-to-megatron-bridge.md at commit 167ba2ad3210 "
      "(2026)",
      "Use: merge it over a recipe's ConfigContainer (OmegaConf), or give each line as an "
      "override: "
      "model.tensor_model_parallel_size=4.  A recipe without comm_overlap wants "
      "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False) before it.");
  text += fmt::format("\nmixed_precision: {}\n", PrecisionPreset(job.training.precision));
  for (const auto& [group, entries] : tree) {
    text += fmt::format("{}:\n", group);
    for (const auto& [key, value] : entries) text += fmt::format("  {}: {}\n", key, value);
  }
  notes.AddFile("megatron_bridge.yaml", text);
}

}  // namespace millwright
