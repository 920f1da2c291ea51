// SPDX-License-Identifier: Apache-2.0
#include "validate/run_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "core/mistakes.h"
#include "planner/estimator.h"
#include "planner/feasibility.h"
#include "topologies/cluster.h"

namespace millwright {
namespace {

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = char(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

int Degree(const std::optional<std::int64_t>& value) { return int(value.value_or(1)); }

// Digits that end right before `end`.
std::optional<std::int64_t> NumberBefore(std::string_view text, std::size_t end) {
  std::size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(text[begin - 1]))) --begin;
  constexpr std::size_t kMostDigits = 9;
  if (begin == end || end - begin > kMostDigits) return {};
  std::int64_t value = 0;
  for (std::size_t i = begin; i < end; ++i) value = 10 * value + (text[i] - '0');
  return value;
}

// ---- Software -----------------------------------------------------------------------------------

Framework FrameworkOf(const PublishedRun& run) {
  const std::string name = Lower(run.framework);
  if (Has(name, "internevo")) return Framework::kInternEvo;
  if (Has(name, "composer")) return Framework::kFsdp;
  if (Has(name, "torchtitan") || Has(name, "torch.compile")) return Framework::kFsdpCompiled;
  if (Has(name, "deepspeed") && Has(name, "megatron")) return Framework::kMegatronDeepSpeed;
  if (Has(name, "megatron-lm (2021") || Has(name, "megatron-lm (2022")) {
    return Framework::kMegatron2021;
  }
  if (run.fsdp.value_or(false) && !Has(name, "megatron")) return Framework::kFsdp;
  return Framework::kMegatron;
}

std::optional<Precision> PrecisionOf(std::string_view text) {
  const std::string word = Lower(text);
  if (word.empty() || word.starts_with("bf16")) return Precision::kBf16;
  if (word.starts_with("fp16")) return Precision::kFp16;
  if (word.starts_with("mxfp8")) return Precision::kMxfp8;
  if (word.starts_with("nvfp4")) return Precision::kNvfp4;
  if (word.starts_with("fp8")) return Precision::kFp8;
  return {};
}

// ---- Cluster ------------------------------------------------------------------------------------

// The preset whose GPU a row names; a capacity that no preset has ("GB200-192GB", the box's round
// figure) is cut off.
std::optional<ClusterConfig> PresetOf(std::string_view gpu) {
  // torchtitan's H100s: 96 GB of HBM2e, 500 W; core/gpu.cc has them.
  if (Has(gpu, "HBM2e")) {
    ClusterConfig cluster = FindCluster("dgx-h100");
    cluster.gpu = FindGpu("H100-HBM2e-500W");
    return cluster;
  }
  for (std::string_view name = gpu; !name.empty();) {
    for (const ClusterPreset& preset : ClusterPresets()) {
      const bool alias = std::ranges::any_of(
          preset.aliases, [&](const std::string& a) { return SameName(a, name); });
      if (alias || SameName(preset.config.gpu.name, name) || SameName(preset.config.name, name)) {
        return preset.config;
      }
    }
    const std::size_t dash = name.rfind('-');
    name = dash == name.npos ? std::string_view() : name.substr(0, dash);
  }
  return {};
}

struct Nics {
  std::int64_t count = 0;  // of a node; 0: not said
  std::int64_t gigabits = 0;
};

// From "4x HDR IB 200 Gb/s per node", "1600 Gb/s RoCE per node (200 Gb/s/GPU)",
// "400 Gb/s per GPU IB or RoCE": clauses that speak of the network outside a node.
Nics NicsOf(std::string_view text, int gpus_per_node, int preset_nics) {
  while (!text.empty()) {
    const std::size_t semicolon = text.find(';');
    const std::string_view clause = text.substr(0, semicolon);
    text.remove_prefix(semicolon == text.npos ? text.size() : semicolon + 1);
    const std::size_t unit = clause.find(" Gb/s");
    if (unit == clause.npos) continue;
    const std::optional<std::int64_t> rate = NumberBefore(clause, unit);
    if (!rate || *rate < 1) continue;
    const std::size_t times = clause.find('x');
    const auto count = times == clause.npos ? std::nullopt : NumberBefore(clause, times);
    if (count && *count >= 1 && times < unit) return {*count, *rate};
    if (Has(clause, "per GPU")) return {gpus_per_node, *rate};
    if (Has(clause, "per node") && preset_nics > 0) {
      // The node's total; as many NICs as give each 100 Gb/s or more.
      std::int64_t nics = preset_nics;
      while (nics > 1 && *rate / nics < 100) nics /= 2;
      return {nics, *rate / nics};
    }
  }
  return {};
}

std::variant<ClusterConfig, NotModelled> ClusterOf(const PublishedRun& run) {
  if (run.gpu.empty()) return NotModelled{"the GPU is not given"};
  if (Has(Lower(run.gpu), "power-limited")) {
    return NotModelled{"a power limit is in force and not stated"};
  }
  std::optional<ClusterConfig> preset = PresetOf(run.gpu);
  if (!preset) return NotModelled{fmt::format("no cluster preset with the GPU {}", run.gpu)};
  if (!run.num_gpus) return NotModelled{"num_gpus is not given"};
  ClusterConfig c = *preset;
  const std::int64_t n = *run.num_gpus;
  int of_node = c.gpus_per_node;
  // A rack's hosts hold 4 GPUs each, and its NVLink domain all of them; elsewhere a node is one.
  const bool rack = of_node > 16;
  if (!rack && run.gpus_per_node) of_node = int(*run.gpus_per_node);
  if (n < of_node) {
    of_node = int(n);
  } else if (n % of_node != 0) {
    // Whole hosts of a rack: the most GPUs that divide the job, 64 of an NVL72.
    int most = of_node;
    while (most > 1 && n % most != 0) --most;
    if (!rack || most < 2) return NotModelled{"num_gpus is no whole number of nodes"};
    of_node = most;
  }
  c.nodes = int(n / of_node);
  if (!rack) {
    const Nics nics = NicsOf(run.interconnect, c.gpus_per_node, c.nics_per_node);
    if (nics.count > 0 && nics.count <= c.gpus_per_node) {
      c.nics_per_node = int(nics.count);
      c.nic_bandwidth = BytesPerSecond(double(nics.gigabits) * 1e9 / 8);
    }
  }
  if (of_node != c.gpus_per_node) {
    const std::int64_t nics = std::int64_t{1} * c.nics_per_node * of_node;
    c.nics_per_node = c.nodes == 1 && nics % c.gpus_per_node != 0
                          ? 0
                          : int(std::max<std::int64_t>(1, nics / c.gpus_per_node));
    const int of_socket = std::max(1, c.gpus_per_node / c.sockets);
    c.gpus_per_node = of_node;
    c.sockets = of_node % of_socket == 0 ? of_node / of_socket : 1;
  }
  if (c.sockets > 1 && c.nics_per_node % c.sockets != 0) c.sockets = 1;
  c.gpus_per_pcie_switch = std::gcd(c.gpus_per_pcie_switch, c.gpus_per_node / c.sockets);
  c.rails = 0;
  if (const auto problems = Inconsistencies(c); !problems.empty()) {
    return NotModelled{fmt::format("cluster: {}: {}", problems[0].field, problems[0].what)};
  }
  return c;
}

// ---- Model --------------------------------------------------------------------------------------

std::variant<ModelConfig, NotModelled> ModelOf(const PublishedRun& run, Framework framework) {
  const RunModel& r = run.model;
  if (r.mamba || !r.hybrid.empty()) return NotModelled{"Mamba layers are not modelled"};
  if (r.latent) return NotModelled{"experts in a latent space are not modelled"};
  for (const auto& [value, name] : {std::pair{&r.layers, "layers"},
                                    {&r.hidden, "hidden"},
                                    {&r.heads, "heads"},
                                    {&r.vocab, "vocab"},
                                    {&r.seq, "seq"}}) {
    if (!*value) return NotModelled{fmt::format("model.{} is not given", name)};
  }
  ModelConfig m;
  m.name = r.name.empty() ? run.id : r.name;
  m.architecture = "gpt";
  m.num_layers = int(*r.layers);
  m.hidden_size = *r.hidden;
  m.num_attention_heads = int(*r.heads);
  m.num_query_groups = int(r.kv_heads.value_or(*r.heads));
  m.kv_channels = r.head_dim.value_or(0);
  m.ffn_hidden_size = r.ffn.value_or(0);
  m.vocab_size = *r.vocab;
  m.max_position_embeddings = *r.seq;
  m.gated_linear_unit = r.gated.value_or(true);
  m.tied_embeddings = r.tied_embeddings.value_or(false);
  if (!m.gated_linear_unit) {
    // Plain MLPs are GPT-like, but for Megatron-LM's own test models, which are given as such.
    m.activation = Activation::kGelu;
    m.normalization = Normalization::kLayerNorm;
    if (r.pos_emb.starts_with("learned") || Of2021(framework)) {
      m.position_embedding = PositionEmbedding::kLearned;
    }
    m.hidden_dropout = m.attention_dropout = Of2021(framework);
  }
  if (r.moe) {
    if (!r.experts || !r.topk || !r.moe_ffn) {
      return NotModelled{"moe.experts, moe.topk and moe.moe_ffn are not all given"};
    }
    m.moe = {.num_experts = int(*r.experts),
             .topk = int(*r.topk),
             .ffn_hidden_size = *r.moe_ffn,
             .shared_expert_ffn_hidden_size = r.shared_ffn.value_or(0)};
  }
  const int dense =
      r.moe ? int(std::min<std::int64_t>(r.dense_layers.value_or(0), m.num_layers)) : m.num_layers;
  const bool alternating = Has(r.window_pattern, "every other layer");
  std::int64_t window = r.sliding_window.value_or(0);
  if (!r.window_pattern.empty()) {
    const auto keys = NumberBefore(r.window_pattern, r.window_pattern.find(' '));
    if (!alternating || !keys) {
      return NotModelled{"this pattern of sliding windows is not modelled"};
    }
    window = *keys;
  }
  for (int i = 0; i < m.num_layers; ++i) {
    LayerKind kind{.moe = i >= dense, .sliding_window = alternating && i % 2 == 1 ? 0 : window};
    if (m.layers.empty() || m.layers.back().kind != kind) m.layers.push_back({0, kind});
    ++m.layers.back().count;
  }
  if (r.attn == "mla") {
    if (!r.kv_lora_rank || !r.qk_nope_dim || !r.qk_rope_dim || !r.v_dim) {
      // DeepSeek-V3's, which most models with latent attention share (arXiv:2412.19437, 4.2).
      m.mla = {.q_lora_rank = 1536,
               .kv_lora_rank = 512,
               .qk_nope_head_dim = 128,
               .qk_rope_head_dim = 64,
               .v_head_dim = 128};
    } else {
      m.mla = {.q_lora_rank = r.q_lora_rank.value_or(0),
               .kv_lora_rank = *r.kv_lora_rank,
               .qk_nope_head_dim = *r.qk_nope_dim,
               .qk_rope_head_dim = *r.qk_rope_dim,
               .v_head_dim = *r.v_dim};
    }
    m.latent = true;
    m.num_query_groups = m.num_attention_heads;
    m.kv_channels = m.mla.v_head_dim;
    if (r.experts == 256 && r.topk == 8) {  // DeepSeek-V3's node-limited routing, 4 of 8 groups
      m.moe.num_groups = 8;
      m.moe.topk_groups = 4;
    }
  } else if (!r.attn.empty() && r.attn != "mha" && r.attn != "gqa") {
    return NotModelled{fmt::format("attention of the kind {} is not modelled", r.attn)};
  }
  m.mtp_num_layers = int(r.mtp_layers.value_or(0));
  FillDefaults(m);
  if (const auto problems = Inconsistencies(m); !problems.empty()) {
    return NotModelled{fmt::format("model: {}: {}", problems[0].field, problems[0].what)};
  }
  return m;
}

// Layers of a chunk to recompute where only "a subset" is said: the fewest that fit, or all.
int LeastThatFits(const Job& job, int most) {
  const Cluster cluster(job.cluster);
  const Estimator estimator(job.model, job.training, cluster);
  ParallelConfig plan = job.parallel;
  for (int layers = 1; layers < most; ++layers) {
    plan.recompute.full_layers = layers;
    const Estimate estimate = estimator.Itemise(plan);
    if (estimate.fits()) return layers;
  }
  return most;
}

// ---- Training and plan --------------------------------------------------------------------------

// By the first of its words, in lower case.
std::optional<RecomputeGranularity> GranularityOf(std::string_view text) {
  const auto first = std::ranges::find_if_not(
      text, [](char c) { return std::isalnum(static_cast<unsigned char>(c)); });
  const std::string_view word(text.begin(), first);
  if (text.empty() || word == "none") return RecomputeGranularity::kNone;
  if (word == "full") return RecomputeGranularity::kFull;
  if (word == "selective") return RecomputeGranularity::kSelective;
  return {};
}

Recompute RecomputeOf(const PublishedRun& run, const ModelConfig& model, Framework framework,
                      int chunks) {
  const std::string text = Lower(run.recompute);
  Recompute r{.granularity = *GranularityOf(text)};
  if (r.granularity != RecomputeGranularity::kSelective) return r;
  if (Has(text, "every 2nd layer") || Has(text, "subset")) {
    // Whole layers, one in two; a share that is not stated is set by LeastThatFits.
    r.granularity = RecomputeGranularity::kFull;
    r.full_layers = std::max(1, model.num_layers / std::max(1, chunks) / 2);
    return r;
  }
  // "selective: mlp" and, as plans are written here, "selective(mlp)".
  const std::size_t colon =
      text.starts_with("selective(") ? std::string("selective").size() : text.find(':');
  std::string_view list = colon == text.npos ? std::string_view() : std::string_view(text);
  if (colon != text.npos) list.remove_prefix(colon + 1);
  const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (std::size_t at = 0; at < list.size();) {
    std::size_t end = at;
    while (end < list.size() && word(list[end])) ++end;
    for (const auto& name : RecomputeModuleNames()) {
      if (name.name != list.substr(at, end - at)) continue;
      if (std::ranges::find(r.modules, name.value) == r.modules.end()) {
        r.modules.push_back(name.value);
      }
    }
    at = end + 1;
  }
  if (r.modules.empty() && framework == Framework::kFsdpCompiled) {
    // torchtitan's per-op choice keeps attention and every second matrix product: what MLP and
    // norms drop is nearest to that.
    r.modules = {RecomputeModule::kMlp, RecomputeModule::kLayerNorm};
  }
  if (r.modules.empty()) r.modules = {RecomputeModule::kCoreAttn};
  // What is inside another module that is listed comes with it.
  const auto listed = [&](RecomputeModule m) {
    return std::ranges::find(r.modules, m) != r.modules.end();
  };
  std::erase_if(r.modules, [&](RecomputeModule m) {
    if (m == RecomputeModule::kMlaUpProj) return !model.latent;
    if (m == RecomputeModule::kMoe) return !model.has_moe();
    if (m == RecomputeModule::kMoeAct) return !model.has_moe() || listed(RecomputeModule::kMoe);
    return false;
  });
  if (r.modules.empty()) r.granularity = RecomputeGranularity::kNone;
  return r;
}

TrainingConfig TrainingOf(const PublishedRun& run, Framework framework, Precision precision,
                          const GpuSpec& gpu) {
  TrainingConfig t;
  t.seq_length = *run.model.seq;
  t.precision = precision;
  t.framework = framework;
  t.flash_attention = run.flash_attention.value_or(!Of2021(framework));
  const bool fsdp = run.fsdp.value_or(false);
  if (fsdp && framework != Framework::kMegatron) t.state = StateScheme::kFsdp;

  // Gradients: BF16 where the row says so.
  const std::string notes = Lower(run.notes);
  if (Has(notes, "bf16 grad") || Has(notes, "grads reduced in bf16") ||
      Has(notes, "fp16-style grads") || run.traits.fsdp_reduce_dtype == "bf16") {
    t.gradient_bytes = 2;
  }
  // Megatron-LM's fp16 of 2021 reduced gradients as they were, and so do fms-fsdp's policies.
  if (Of2021(framework) && precision == Precision::kFp16) t.gradient_bytes = 2;
  if (Has(run.framework, "PyTorch FSDP1 + torch.compile")) t.gradient_bytes = 2;
  // And so do the recipes of NeMo and Megatron-Bridge (grad_reduce_in_fp32 off).
  const std::string name = Lower(run.framework);
  if (Has(name, "nemo") || Has(name, "bridge")) t.gradient_bytes = 2;
  // NVIDIA's recipes and examples keep weights quantised, too (fp8_param_gather); Megatron-LM's
  // default is off.
  const bool low = LowPrecision(precision);
  t.bf16_weights = low && Has(name, "megatron-lm");
  // Megatron-Bridge 0.1.0's recipes store SwiGLU's input in FP8 (its changelog).
  t.fp8_activation_store = Has(name, "bridge") && Has(name, "25.09") && low;
  if (Has(notes, "fp32 grad accumulation") || Has(notes, "18 b/param")) t.gradient_bytes = 4;
  // Eager FSDP keeps attention's generation of its time: Triton FlashAttention on A100 until
  // 2023, FlashAttention-2 on H100.
  if (framework == Framework::kFsdp) {
    t.flash_kernel = gpu.calibration == "A100" ? FlashKernel::kTriton : FlashKernel::kFlash2;
  }
  // Megatron-Bridge's and NeMo's recipes fuse the loss; so do rows that say "cef".
  // And torch's own keeps no fp32 copy of the logits, but their fp32 log-softmax.
  t.fused_cross_entropy = framework == Framework::kFsdp || Has(name, "bridge") ||
                          Has(name, "nemo") || Has(notes, "\"cef\"");
  if (Has(notes, "overlap off")) {
    // SimuMax's runs: every overlap switched off.
    t.overlap_grad_reduce = t.overlap_param_gather = t.overlap_p2p = false;
  } else if (Of2021(framework)) {
    t.overlap_grad_reduce = t.overlap_param_gather = false;
  } else if (framework == Framework::kInternEvo) {
    t.overlap_param_gather = false;  // broadcast after the step
  }
  // NVIDIA's own recipes for dense models overlap tensor-parallel communication (userbuffers).
  t.tp_comm_overlap = run.traits.async_tp.value_or(
      (Has(name, "nemo") || Has(name, "bridge") || Has(name, "megatron-core")) && !run.model.moe &&
      run.tp.value_or(1) > 1 && !fsdp);
  // Where its recipes for experts have a graph of the whole step, they overlap the exchanges, too
  // (_enable_hybridep_full_iteration_mxfp8 and its like in perf_recipes, 0.5 and 0.6).
  t.expert_overlap = run.traits.expert_overlap.value_or(Has(name, "bridge") && run.model.moe &&
                                                        run.traits.cuda_graph == "full");
  t.moe_token_drop = run.traits.token_drop.value_or(false);
  t.launch_blocking = run.traits.launch_blocking.value_or(false);
  // A recipe of Megatron-Bridge that names no flexible dispatcher takes NCCL's all-to-all
  // (moe_token_dispatcher_type of Qwen3 235B on H100, B200 and B300).  0.1.0's had DeepEP where
  // experts lie on several nodes, unless they drop tokens ("Using token drop, disabling DeepEP").
  const bool across = run.ep.value_or(1) * run.tp.value_or(1) > run.gpus_per_node.value_or(8);
  if (run.traits.dispatcher == "deepep" || run.traits.dispatcher == "hybridep" ||
      (run.traits.dispatcher.empty() && Has(name, "bridge") && Has(name, "25.09") && across &&
       !t.moe_token_drop)) {
    t.moe_dispatcher = MoeDispatcher::kDeepEp;
  }
  if (run.traits.cuda_graph == "partial" || Has(notes, "te cuda graphs")) {
    t.cuda_graph = CudaGraph::kPartial;
  }
  if (run.traits.cuda_graph == "full") t.cuda_graph = CudaGraph::kFull;
  return t;
}

// Of the model, whose activations a run keeps in host memory.
int OffloadedLayers(const PublishedRun& run) {
  const int all = int(run.model.layers.value_or(1));
  if (run.traits.activation_offload.value_or(false)) {
    const std::size_t of = run.recompute.find("offload of ");
    if (of == std::string::npos) return all;
    const std::string_view rest = std::string_view(run.recompute).substr(of + 11);
    return int(std::min<std::int64_t>(all, NumberBefore(rest, rest.find(' ')).value_or(all)));
  }
  // "activation CPU offload (40 layers for 70B fp8_cs, 95 layers for 405B)".
  const std::size_t at = run.notes.find("activation CPU offload (");
  if (!run.fsdp.value_or(false) || at == std::string::npos) return 0;
  int offloaded = 0;
  constexpr std::string_view kFor = " layers for ";
  for (std::size_t of = run.notes.find(kFor, at); of != std::string::npos;
       of = run.notes.find(kFor, of + 1)) {
    const std::string_view rest = std::string_view(run.notes).substr(of + kFor.size());
    const std::string_view size = rest.substr(0, rest.find_first_of(" ),;"));
    if (!size.empty() && Has(run.model.name, size)) {
      offloaded = int(std::min(NumberBefore(run.notes, of).value_or(0), std::int64_t{all}));
    }
  }
  return offloaded;
}

}  // namespace

std::variant<RunJob, NotModelled> RunJobOf(const PublishedRun& run) {
  RunJob out;
  Job& job = out.job;
  const Framework framework = FrameworkOf(run);
  auto cluster = ClusterOf(run);
  if (auto* why = std::get_if<NotModelled>(&cluster)) return *why;
  job.cluster = std::move(std::get<ClusterConfig>(cluster));
  auto model = ModelOf(run, framework);
  if (auto* why = std::get_if<NotModelled>(&model)) return *why;
  job.model = std::move(std::get<ModelConfig>(model));
  std::optional<Precision> precision = PrecisionOf(run.precision);
  // torchao's row-wise scaling under tensor parallelism: no faster than BF16 until mid-2025
  // (torchtitan's tracker, Llama 3 8B on H100, TP 2: 5,189 tokens/s against 5,378).
  if (Has(run.precision, "rowwise") && Degree(run.tp) > 1) precision = Precision::kBf16;
  if (!precision) return NotModelled{fmt::format("precision {} is not modelled", run.precision)};
  if (Has(run.notes, "LoRA")) return NotModelled{"only adapters are trained (LoRA)"};
  if (!GranularityOf(Lower(run.recompute))) {
    return NotModelled{fmt::format("recompute \"{}\" is neither none, full nor selective",
                                   Printable(run.recompute, 40))};
  }
  if (!run.gbs) return NotModelled{"gbs is not given"};
  if (!run.mbs) return NotModelled{"mbs is not given"};
  job.training = TrainingOf(run, framework, *precision, job.cluster.gpu);

  ParallelConfig& p = job.parallel;
  p.tensor = Degree(run.tp);
  p.pipeline = Degree(run.pp);
  p.virtual_stages = p.pipeline > 1 ? Degree(run.vpp) : 1;
  p.context = Degree(run.cp);
  p.expert = job.model.has_moe() ? Degree(run.ep) : 1;
  // Megatron's expert tensor degree is the tensor degree where nothing else is said.
  // (and without expert parallelism rows that say 1 mean that default).
  p.expert_tensor = job.model.has_moe() ? int(run.etp.value_or(p.tensor)) : 1;
  if (job.model.has_moe() && p.expert == 1 && framework == Framework::kMegatron) {
    p.expert_tensor = p.tensor;
  }
  p.micro_batch_size = int(*run.mbs);
  const std::int64_t n = job.cluster.gpus();
  const std::int64_t model_ranks = std::int64_t{1} * p.tensor * p.pipeline;
  if (n % model_ranks != 0 || n / model_ranks % p.context != 0) {
    return NotModelled{"tp x pp x cp does not divide num_gpus"};
  }
  p.data = int(n / model_ranks / p.context);
  if (run.dp && *run.dp != p.data) return NotModelled{"tp x pp x cp x dp is not num_gpus"};
  p.zero = int(run.zero.value_or(run.fsdp.value_or(false) ? 3 : 1));
  if (run.traits.sharding == "SHARD_GRAD_OP") p.zero = 2;
  if (p.data * p.context == 1) p.zero = 0;
  if (p.zero > 0) {
    if (run.hsdp.value_or(false)) p.zero_shard = std::min(job.cluster.gpus_per_node, p.data);
    // InternEvo's group: "zero1 shard group = 8 GPUs", "zero1=8".
    for (std::string_view lead : {"zero1 shard group = ", "zero1="}) {
      const std::size_t at = run.notes.find(lead);
      if (at == std::string::npos) continue;
      std::size_t end = at + lead.size();
      while (end < run.notes.size() && std::isdigit(static_cast<unsigned char>(run.notes[end]))) {
        ++end;
      }
      const auto ranks = NumberBefore(run.notes, end);
      if (ranks && *ranks >= 1 && *ranks < p.data) p.zero_shard = int(*ranks);
    }
  }
  p.schedule = p.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
  if (Has(run.notes, "Ulysses")) p.context_kind = ContextParallelKind::kUlysses;
  // Megatron wants sequence parallelism with tensor parallelism in MoE models; without being told
  // otherwise its recipes since 2023 set it for all.
  p.sequence_parallel =
      p.tensor > 1 && (job.model.has_moe() || run.sp.value_or(framework == Framework::kMegatron));
  const int stages = p.pipeline * p.virtual_stages;
  p.recompute = RecomputeOf(run, job.model, framework, stages);
  if (p.recompute.granularity != RecomputeGranularity::kFull) {
    p.recompute.offload_layers = (OffloadedLayers(run) + stages - 1) / stages;
  }

  // Whole micro-batches, and how much of one more is left over.
  const double samples = double(*run.gbs) / p.data;
  if (samples < p.micro_batch_size) p.micro_batch_size = std::max(1, int(samples));
  double whole = std::max(1.0, std::floor(samples / p.micro_batch_size));
  out.ragged = std::max(0.0, samples / p.micro_batch_size - whole);
  if (p.virtual_stages > 1) whole = std::max(1.0, std::floor(whole / p.pipeline)) * p.pipeline;
  job.training.global_batch_size = std::int64_t(whole) * p.data * p.micro_batch_size;
  job.has_model = job.has_training = job.has_cluster = job.has_parallel = true;
  if (const Verdict verdict =
          CheckPlan(job.model, job.training, job.cluster.gpu, job.cluster.gpus(), p)) {
    return NotModelled{fmt::format("{}: {}", Name(verdict->reason), verdict->detail)};
  }
  if (Has(Lower(run.recompute), "subset")) {
    const int of_chunk = job.model.num_layers / (p.pipeline * p.virtual_stages);
    p.recompute.full_layers = LeastThatFits(job, std::max(1, of_chunk));
  }
  return out;
}

}  // namespace millwright
