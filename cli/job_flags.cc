// SPDX-License-Identifier: Apache-2.0
#include "cli/job_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/mistakes.h"
#include "core/model_presets.h"
#include "core/unit_text.h"
#include "cost_models/gpu_curves.h"
#include "planner/sweep_grid.h"
#include "report/text.h"
#include "topologies/what_if.h"

namespace millwright {
namespace {

template <class T, class U>
void Override(T& field, const std::optional<U>& flag) {
  if (flag) field = static_cast<T>(*flag);
}

// One node of fewer GPUs than `whole` has.
ClusterConfig PartOfNode(const ClusterConfig& whole, int gpus) {
  ClusterConfig part = whole;
  part.nodes = 1;
  part.gpus_per_node = gpus;
  if (gpus % part.sockets != 0) part.sockets = 1;
  part.gpus_per_pcie_switch = std::gcd(part.gpus_per_pcie_switch, gpus / part.sockets);
  // Its NICs reach nobody: keep the share where it is a whole number, else leave them out.
  const std::int64_t nics = std::int64_t{1} * whole.nics_per_node * gpus;
  part.nics_per_node =
      nics % whole.gpus_per_node == 0 ? static_cast<int>(nics / whole.gpus_per_node) : 0;
  part.rails = 0;
  return part;
}

// What has no datasheet takes what was measured.
void TakeRates(const GpuCurves& curves, ClusterConfig& cluster) {
  if (!cluster.gpu.placeholder) return;
  cluster.gpu = WithRates(cluster.gpu, curves.rates);
  if (curves.rates.link.value <= 0) return;
  cluster.nvlink_bandwidth = cluster.pcie_bandwidth = curves.rates.link;
}

}  // namespace

void NoteError(CommandLine& line, std::string_view option, const ConfigError& error) {
  std::string_view text = error.what();
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    if (option.empty()) {
      line.Problem(one);
    } else {
      line.Problem(option, one);
    }
  }
}

void JobFlags::AddTo(CommandLine& line, std::size_t most_files) {
  line.Positionals("JOB.json", files_, most_files,
                   "a job file, as plan --out writes it (see: describe job); flags override it");
  AddModelTo(line);
  line.Section("Cluster");
  line.Text("--cluster", "NAME|PATH", cluster_,
            "a preset (see: describe clusters) or a JSON file (see: describe job)");
  AddClusterSizeTo(line);
  line.Text("--calibration", "FILE", calibration_,
            "curves measured on the cluster's GPU, as calibrate writes them");
  line.Text("--what-if", "NAME=VALUE,...", what_if_,
            "the cluster with another hbm, hbm-bandwidth, flops, bf16, fp8, fp4, nvlink, ib, pcie, "
            "nvlink-latency, ib-latency or switch-latency: hbm=141GiB,ib=800Gb/s,flops=+10%");
  AddTrainingTo(line);
}

void JobFlags::AddWithSizesTo(CommandLine& line) {
  several_sizes_ = true;
  AddTo(line);
}

std::vector<int> JobFlags::TakeNodes(CommandLine& line) {
  if (!sizes_) return {};
  const auto number = [](const std::string& text) -> std::optional<std::int64_t> {
    const std::optional<std::int64_t> value = ParseInteger(text);
    return value && *value >= 1 && *value <= kMaxGpus ? value : std::nullopt;
  };
  std::vector<int> sizes;
  const bool several =
      sizes_->find("..") != std::string::npos || sizes_->find('|') != std::string::npos;
  const auto refuse = [&](const std::string& text) {
    const std::string of =
        several ? fmt::format(" of \"{}\"", Printable(*sizes_, kMostNameShown)) : "";
    line.Problem("--nodes", fmt::format("expected an integer between 1 and {}, got \"{}\"{}",
                                        kMaxGpus, Printable(text, kMostNameShown), of));
    nodes_ = 1;  // so that one mistake is not reported as another too
    return std::vector<int>();
  };
  if (!several) {
    nodes_ = number(*sizes_);
    if (!nodes_) return refuse(*sizes_);
    return {};
  }
  try {
    constexpr std::size_t kMostSizes = 1000;
    const std::vector<SweepAxis> axes = ParseSweep("nodes=" + *sizes_, {"nodes"});
    for (const std::string& value : axes.front().values) {
      const std::optional<std::int64_t> size = number(value);
      if (!size) return refuse(value);
      sizes.push_back(int(*size));
    }
    if (sizes.size() > kMostSizes) {
      line.Problem("--nodes",
                   fmt::format("expected at most {} sizes, got {}", kMostSizes, sizes.size()));
    }
  } catch (const ConfigError& error) {
    constexpr std::string_view kAxis = "nodes: ";  // --nodes says it
    const std::string_view what = error.what();
    line.Problem("--nodes", std::string(what.substr(what.starts_with(kAxis) ? kAxis.size() : 0)));
    nodes_ = 1;
    return {};
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  nodes_ = sizes.back();
  return sizes;
}

void JobFlags::AddModelTo(CommandLine& line) {
  line.Section("Model");
  line.Text("--model", "NAME|PATH", model_,
            "a preset (see: describe models), a Hugging Face config.json, or a folder with one");
  line.Section("Model by its shape, GPT-3 style unless switched");
  line.Int("--layers", layers_, {1, kMostLayers},
           "transformer layers; alone, of the model that is named or the job's");
  line.Int("--hidden", hidden_, {1, kMostHidden}, "hidden size");
  line.Int("--heads", heads_, {1, kMostHeads}, "attention heads");
  line.Int("--kv-heads", kv_heads_, {1, kMostHeads}, "KV heads (default: as many as heads)");
  line.Int("--head-dim", head_dim_, {1, kMostHeadSize}, "size of a head (default: hidden / heads)");
  line.Int("--ffn", ffn_, {1, kMostFfn}, "FFN hidden size (default: 4 x hidden)");
  line.Int("--vocab", vocab_, {1, kMostVocabulary}, "vocabulary (default: 51200)");
  line.Int("--max-positions", max_positions_, {1, kMostPositions},
           "learned positions (default: 2048, or --seq where that is more)");
  line.Flag("--swiglu", swiglu_, "a SiLU-gated MLP instead of GELU");
  line.Flag("--rms-norm", rms_norm_, "RMSNorm instead of LayerNorm");
  line.Flag("--rope", rope_, "rotary instead of learned positions");
  line.Switch("--bias", bias_, "biases in all projections (default: yes)");
  line.Switch("--dropout", dropout_, "dropout on attention weights and residuals (default: yes)");
  line.Flag("--untied", untied_, "an output head of its own instead of the embedding");
}

void JobFlags::AddClusterSizeTo(CommandLine& line) {
  line.Section("Cluster");
  if (several_sizes_) {
    line.Text(
        "--nodes", "N|A..B", sizes_,
        "NVLink domains: DGX systems, NVL72 racks, boxes (default: 1, or as the file says); 8..64 "
        "(doubling), 8..64+8 or 8|12: the best plan of each size, and which size to take");
  } else {
    line.Int("--nodes", nodes_, {1, kMaxGpus},
             "NVLink domains: DGX systems, NVL72 racks, boxes (default: 1, or as the file says)");
  }
  line.Int("--gpus", gpus_, {1, kMaxGpus},
           "instead of --nodes: a multiple of a node's GPUs, or fewer than one node's");
  line.Text("--gpu", "NAME", gpu_, "another GPU in the same nodes (see: describe gpus)");
}

void JobFlags::AddRanksTo(CommandLine& line) {
  line.Section("Cluster");
  line.Int("--ranks", gpus_, {1, kMaxGpus}, "the same as --gpus");
}

void JobFlags::AddTrainingTo(CommandLine& line) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  line.Section("Training step");
  line.Int("--global-batch", global_batch_, {1, kMost}, "sequences in one optimizer step");
  line.Int("--seq", seq_, {1, kMost}, "tokens of a sequence");
  line.Enum("--precision", precision_, PrecisionNames(),
            "of the layers' matrix products (default: bf16)");
  line.Enum("--mfu-convention", mfu_convention_, MfuConventionNames(),
            "attention FLOPs in MFU halved by the causal mask, or not (default: causal)");
  line.Section("Software");
  line.Enum("--framework", framework_, FrameworkNames(),
            "what the host costs and what is fused (default: megatron, with Transformer Engine)");
  line.Enum("--cuda-graph", cuda_graph_, CudaGraphNames(),
            "what the host launches as a graph; full: a whole iteration (default: none)");
  line.Section("Memory choices");
  line.Enum("--state", state_, StateSchemeNames(),
            "BF16 copy and fp32 master, or PyTorch FSDP's fp32 shard (default: megatron)");
  line.Choice(
      "--gradient-dtype", {"fp32", "bf16"},
      [this](std::size_t i) { gradient_bytes_ = i == 0 ? 4 : 2; },
      "of the gradients that are kept (default: fp32)");
  line.Choice(
      "--moment-dtype", {"fp32", "bf16"}, [this](std::size_t i) { moment_bytes_ = i == 0 ? 8 : 4; },
      "of Adam's two moments (default: fp32)");
  line.Switch("--flash-attention", flash_attention_, "keep no attention scores (default: yes)");
  line.Switch("--fused-swiglu", fused_swiglu_,
              "recompute the gated product instead of keeping it (default: no)");
  line.Switch("--fp8-activation-store", fp8_activation_store_,
              "keep the MLP activation's input in FP8 (default: no)");
  line.Switch("--fused-cross-entropy", fused_cross_entropy_,
              "keep no fp32 copy of the logits (default: no)");
  line.Section("Overlap and experts");
  line.Switch("--overlap-grad-reduce", overlap_grad_reduce_,
              "reduce gradients under the backward pass (default: yes)");
  line.Switch("--overlap-param-gather", overlap_param_gather_,
              "gather sharded parameters under the forward pass (default: yes)");
  line.Switch("--overlap-p2p", overlap_p2p_,
              "pipeline sends under compute, interleaved schedule only (default: yes)");
  line.Switch("--tp-comm-overlap", tp_comm_overlap_,
              "tensor-parallel collectives under their matrix products (default: no)");
  line.Switch("--cp-comm-overlap", cp_comm_overlap_,
              "ring attention's exchange under attention (default: yes)");
  line.Switch("--expert-overlap", expert_overlap_,
              "all-to-all under other micro-batches' compute (default: no)");
  line.Enum("--moe-dispatcher", moe_dispatcher_, MoeDispatcherNames(),
            "one copy of a token for each expert, or for each GPU and domain with one (default: "
            "alltoall)");
  line.Number("--moe-imbalance", moe_imbalance_, {.min = 1, .max = 1000},
              "tokens of the fullest expert rank over the mean (default: 1)");
}

// The first so many of a model's layers; of more than it has the last kind is repeated.
void JobFlags::ShortenModel(ModelConfig& model) const {
  int left = static_cast<int>(*layers_);
  model.num_layers = left;
  for (LayerRun& run : model.layers) left -= run.count = std::min(run.count, left);
  model.layers.back().count += left;
  std::erase_if(model.layers, [](const LayerRun& run) { return run.count == 0; });
}

void JobFlags::ResolveModel(CommandLine& line, Job& job) const {
  const bool details = kv_heads_ || head_dim_ || ffn_ || max_positions_ || swiglu_ || rms_norm_ ||
                       rope_ || untied_ || bias_ || dropout_;
  // Alone, --layers is of the model that is named or that the job has.
  const bool shorten = layers_ && !hidden_ && !heads_ && !details && (model_ || job.has_model);
  const bool shape = (layers_ && !shorten) || hidden_ || heads_;
  const bool detail = details || (vocab_ && !job.has_model);
  if (model_ && (shape || detail || vocab_)) {
    line.Problem("--model", "a shape (--layers, --hidden, ...) is given too; give one of them");
    return;
  }
  if (model_) {
    try {
      job.model = LoadModel(*model_);
      job.has_model = true;
      if (shorten) ShortenModel(job.model);
    } catch (const ConfigError& error) {
      NoteError(line, "--model", error);
    }
  } else if (job.has_model && (vocab_ || shorten) && !shape && !detail) {
    Override(job.model.vocab_size, vocab_);
    if (shorten) ShortenModel(job.model);
  } else if (shape || detail) {
    const std::pair<const char*, bool> needed[] = {
        {"--layers", layers_.has_value()},
        {"--hidden", hidden_.has_value()},
        {"--heads", heads_.has_value()},
    };
    bool whole = true;
    for (const auto& [name, given] : needed) {
      if (!given) line.Missing(name, "missing; a model's shape needs --layers, --hidden, --heads");
      whole = whole && given;
    }
    if (!whole) return;
    GptShapeOptions o{.num_layers = static_cast<int>(*layers_),
                      .hidden_size = *hidden_,
                      .num_attention_heads = static_cast<int>(*heads_)};
    Override(o.num_query_groups, kv_heads_);
    Override(o.kv_channels, head_dim_);
    Override(o.ffn_hidden_size, ffn_);
    Override(o.vocab_size, vocab_);
    if (seq_) o.max_position_embeddings = std::max(o.max_position_embeddings, *seq_);
    Override(o.max_position_embeddings, max_positions_);
    o.swiglu = swiglu_;
    o.rms_norm = rms_norm_;
    o.rope = rope_;
    Override(o.bias, bias_);
    Override(o.dropout, dropout_);
    o.tied_embeddings = !untied_;
    try {
      job.model = GptShape(o);
      job.has_model = true;
    } catch (const ConfigError& error) {
      NoteError(line, "", error);
    }
  } else if (!job.has_model) {
    line.Missing("--model",
                 "missing; give a preset or a path, or a shape by --layers, --hidden and --heads");
  }
}

void JobFlags::ResizeByGpus(CommandLine& line, ClusterConfig& cluster, std::int64_t gpus) {
  const int of_node = cluster.gpus_per_node;
  if (gpus % of_node == 0) {
    cluster.nodes = static_cast<int>(gpus / of_node);
  } else if (gpus < of_node) {
    const ClusterConfig part = PartOfNode(cluster, static_cast<int>(gpus));
    for (const ClusterProblem& problem : Inconsistencies(part)) {
      line.Problem("--gpus",
                   fmt::format("{} of the {} GPUs of a {} node cannot stand alone: {}: {}", gpus,
                               of_node, cluster.name, problem.field, problem.what));
    }
    cluster = part;
  } else {
    const std::int64_t below = gpus / of_node * of_node;
    line.Problem("--gpus",
                 fmt::format("expected a multiple of the {0} GPUs of a {1} node ({2}, {3}), or "
                             "fewer than {0}, got \"{4}\"",
                             of_node, cluster.name, below, below + of_node, gpus));
  }
}

void JobFlags::ResolveCluster(CommandLine& line, Job& job, std::optional<std::int64_t> gpus) const {
  if (cluster_) {
    try {
      job.cluster = LoadCluster(*cluster_);
      job.has_cluster = true;
    } catch (const ConfigError& error) {
      NoteError(line, "--cluster", error);
      job.has_cluster = false;
    }
  } else if (!job.has_cluster) {
    line.Missing("--cluster", "missing; give a preset or a JSON file");
  }
  if (job.has_cluster) Resize(line, job.cluster, gpus);
  if (job.has_cluster && !job.cluster.unlike_nodes.empty() && !line.HasProblems()) {
    line.Warning("unlike_nodes",
                 fmt::format("estimates and plans take every node to be as slow as "
                             "the slowest, {}; simulate --fidelity full has each "
                             "as it is ({})",
                             TextOf(job.cluster.slowest()), TextOf(job.cluster.unlike_nodes)));
  }
  if (job.has_cluster && what_if_) {
    try {
      ApplyWhatIf(job.cluster, *what_if_);
    } catch (const ConfigError& error) {
      NoteError(line, "", error);
    }
    if (!job.cluster.gpu.calibration_file.empty()) {
      line.Warning("--what-if", "measured curves stay as they were measured");
    }
  }
}

ClusterConfig JobFlags::ResolveCluster(CommandLine& line, const std::string& name) const {
  ClusterConfig cluster = LoadCluster(name);
  Resize(line, cluster);
  line.ThrowIfProblems();
  return cluster;
}

void JobFlags::Resize(CommandLine& line, ClusterConfig& cluster,
                      std::optional<std::int64_t> gpus) const {
  if (gpu_) {
    try {
      cluster.gpu = FindGpu(*gpu_);
    } catch (const ConfigError& error) {
      NoteError(line, "--gpu", error);
    }
  }
  if (calibration_) {
    try {
      const GpuCurves curves = ParseCurves(*calibration_, ReadTextFile(*calibration_));
      const GpuSpec* const of = GpuNamed(curves.gpu);
      if (of != nullptr && of->placeholder && !cluster.gpu.placeholder) {
        line.Problem("--calibration",
                     fmt::format("is of {}, whose curves say nothing of an {}",
                                 Printable(curves.gpu, kMostNameShown), cluster.gpu.name));
      } else if (!SameName(curves.gpu, cluster.gpu.name)) {
        line.Warning("--calibration",
                     fmt::format("is of {}, and the cluster has {}",
                                 Printable(curves.gpu, kMostNameShown), cluster.gpu.name));
      }
      cluster.gpu.calibration_file = *calibration_;
      TakeRates(curves, cluster);
    } catch (const ConfigError& error) {
      NoteError(line, "--calibration", error);
    }
  }
  if (!calibration_ && cluster.gpu.placeholder && !cluster.gpu.calibration_file.empty()) {
    const std::string& file = cluster.gpu.calibration_file;
    try {
      TakeRates(ParseCurves(file, ReadTextFile(file)), cluster);
    } catch (const ConfigError& error) {
      NoteError(line, "", error);
    }
  }
  if (nodes_ && gpus_) {
    line.Problem("--gpus", "--nodes is given too; give one of them");
  } else if (gpus_ || (gpus && !nodes_)) {
    ResizeByGpus(line, cluster, gpus_ ? *gpus_ : *gpus);
  } else if (nodes_) {  // what the file says has been checked with the file
    cluster.nodes = static_cast<int>(*nodes_);
    for (const ClusterProblem& problem : Inconsistencies(cluster)) {
      line.Problem("--nodes", fmt::format("{} of {}: {}: {}", Counted(*nodes_, "node"),
                                          cluster.name, problem.field, problem.what));
    }
  }
}

void JobFlags::ResolveTraining(CommandLine& line, Job& job) const {
  TrainingConfig& t = job.training;
  Override(t.global_batch_size, global_batch_);
  Override(t.seq_length, seq_);
  Override(t.precision, precision_);
  Override(t.framework, framework_);
  Override(t.cuda_graph, cuda_graph_);
  Override(t.state, state_);
  Override(t.gradient_bytes, gradient_bytes_);
  Override(t.moment_bytes, moment_bytes_);
  Override(t.flash_attention, flash_attention_);
  Override(t.fused_swiglu, fused_swiglu_);
  Override(t.fp8_activation_store, fp8_activation_store_);
  Override(t.fused_cross_entropy, fused_cross_entropy_);
  Override(t.moe_imbalance, moe_imbalance_);
  Override(t.overlap_grad_reduce, overlap_grad_reduce_);
  Override(t.overlap_param_gather, overlap_param_gather_);
  Override(t.overlap_p2p, overlap_p2p_);
  Override(t.tp_comm_overlap, tp_comm_overlap_);
  Override(t.cp_comm_overlap, cp_comm_overlap_);
  Override(t.expert_overlap, expert_overlap_);
  Override(t.moe_dispatcher, moe_dispatcher_);
  Override(t.mfu_convention, mfu_convention_);
  job.has_training = true;
  if (t.global_batch_size == 0) {
    line.Missing("--global-batch", "missing; give the sequences of one optimizer step");
  }
  if (t.seq_length == 0) line.Missing("--seq", "missing; give the tokens of a sequence");
  if (job.has_model && job.model.position_embedding == PositionEmbedding::kLearned &&
      job.model.max_position_embeddings > 0 && t.seq_length > job.model.max_position_embeddings) {
    line.Problem("--seq",
                 fmt::format("expected at most the {} learned positions of {}, got \"{}\"",
                             job.model.max_position_embeddings, job.model.name, t.seq_length));
  }
}

void JobFlags::Warn(CommandLine& line, const Job& job) const {
  const ModelConfig& m = job.model;
  const std::int64_t seq = job.training.seq_length;
  if (m.position_embedding == PositionEmbedding::kRope && m.max_position_embeddings > 0 &&
      seq > m.max_position_embeddings) {
    line.Warning("--seq",
                 fmt::format("{} tokens are more than the {} positions of {}", FormatInteger(seq),
                             FormatInteger(m.max_position_embeddings), m.name));
  }
  if (m.has_moe()) return;
  const std::pair<const char*, bool> of_experts[] = {
      {"--expert-overlap", expert_overlap_.has_value()},
      {"--moe-dispatcher", moe_dispatcher_.has_value()},
      {"--moe-imbalance", moe_imbalance_.has_value()},
  };
  for (const auto& [name, given] : of_experts) {
    if (given) line.Warning(name, fmt::format("changes nothing: {} has no experts", m.name));
  }
}

Job JobFlags::Resolve(CommandLine& line) const {
  return Resolve(line, files_.empty() ? nullptr : &files_.front());
}

Job JobFlags::Resolve(CommandLine& line, const std::string& file) const {
  return Resolve(line, &file);
}

Job JobFlags::Resolve(CommandLine& line, const std::string* file) const {
  Job job;
  bool read = true;
  if (file != nullptr) {
    try {
      job = ReadJob(*file);
    } catch (const ConfigError& error) {
      NoteError(line, "", error);
      read = false;
    }
  }
  if (!read) {
    // What the file would have given is not known: only look at what flags give.
    Job rest;
    rest.has_model = rest.has_cluster = true;
    rest.training = {.global_batch_size = 1, .seq_length = 1};
    rest.cluster.gpus_per_node = 1;
    if (model_ || layers_ || hidden_ || heads_) ResolveModel(line, rest);
    if (cluster_ || gpu_) ResolveCluster(line, rest);
    return job;
  }
  return Resolve(line, std::move(job), std::nullopt);
}

Job JobFlags::Resolve(CommandLine& line, Job job, std::optional<std::int64_t> gpus) const {
  ResolveModel(line, job);
  ResolveCluster(line, job, gpus);
  ResolveTraining(line, job);
  if (job.has_model) Warn(line, job);
  return job;
}

}  // namespace millwright
