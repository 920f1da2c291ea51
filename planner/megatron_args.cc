// SPDX-License-Identifier: Apache-2.0
#include "planner/megatron_args.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/mistakes.h"
#include "core/shell_words.h"
#include "cost_models/pipeline.h"
#include "planner/feasibility.h"
#include "planner/megatron_options.h"

namespace millwright {
namespace {

constexpr std::int64_t kMostBatch = std::int64_t{1} << 30;
constexpr int kMostDegree = 1 << 20;
constexpr std::size_t kMostWarnings = 100;
constexpr std::size_t kMostLayoutStages = 1 << 16;

std::optional<std::int64_t> Integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

bool LooksLikeOption(std::string_view word) { return word.starts_with("--") && word.size() > 2; }

// The words of a run: what starts it, and what it is told.
struct RunWords {
  ShellCommand launcher, arguments;
};

RunWords FindRun(const std::string& file, const ShellScript& script) {
  const auto known = [](const ShellCommand& words) {
    return std::count_if(words.begin(), words.end(), [](const ShellWord& word) {
      return FindMegatronOption(std::string_view(word.text).substr(0, word.text.find('='))) !=
             nullptr;
    });
  };
  RunWords best;
  std::ptrdiff_t most = 0;
  const auto consider = [&](RunWords words) {
    const auto count = known(words.arguments);
    if (count > most) {
      best = std::move(words);
      most = count;
    }
  };
  ShellCommand bare, of_arrays;  // a file of options alone, or of arrays of them
  for (const ShellCommand& command : script.commands) {
    if (LooksLikeOption(command.front().text)) {
      bare.insert(bare.end(), command.begin(), command.end());
      continue;
    }
    const auto program = std::find_if(command.begin(), command.end(), [](const ShellWord& word) {
      return word.text.ends_with(".py");
    });
    if (program != command.end()) {
      consider({{command.begin(), program}, {program + 1, command.end()}});
    } else {
      consider({{}, {command.begin() + 1, command.end()}});
    }
  }
  consider({{}, bare});
  for (const std::string& name : script.array_order) {
    const std::vector<ShellWord>& array = script.arrays.at(name);
    of_arrays.insert(of_arrays.end(), array.begin(), array.end());
  }
  consider({{}, of_arrays});
  if (most == 0) {
    Mistakes none(file);
    none.Add("",
             "has no option of Megatron-LM: expected a launch script, a command line or a list of "
             "arguments such as --num-layers 32");
    none.ThrowIfAny();
  }
  return best;
}

// The value behind one of `names`, also as NAME=VALUE.
std::optional<std::int64_t> LauncherNumber(const ShellCommand& words,
                                           std::initializer_list<std::string_view> names) {
  std::optional<std::int64_t> value;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view text = words[i].text;
    const std::string_view name = text.substr(0, text.find('='));
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    if (name.size() < text.size()) {
      value = Integer(text.substr(name.size() + 1));
    } else if (i + 1 < words.size()) {
      value = Integer(words[i + 1].text);
    }
  }
  return value;
}

// torchrun's options, srun's, then variables by their usual names, then #SBATCH lines.
std::optional<std::int64_t> GpusOfRun(const ShellScript& script, const ShellCommand& launcher) {
  ShellCommand sbatch;
  for (const ShellWord& comment : script.comments) {
    if (!comment.text.starts_with("#SBATCH")) continue;
    std::string_view rest = std::string_view(comment.text).substr(7);
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find_first_of(" \t"), rest.size());
      if (end > 0) sbatch.push_back({std::string(rest.substr(0, end)), comment.line});
      rest.remove_prefix(std::min(rest.size(), end + 1));
    }
  }
  const auto variable =
      [&](std::initializer_list<const char*> names) -> std::optional<std::int64_t> {
    for (const char* name : names) {
      if (const auto it = script.variables.find(name); it != script.variables.end()) {
        if (const auto value = Integer(it->second)) return value;
      }
    }
    return {};
  };
  auto nodes = LauncherNumber(launcher, {"--nnodes", "--nodes", "-N"});
  if (!nodes) nodes = variable({"NNODES", "NUM_NODES", "NODES"});
  if (!nodes) nodes = LauncherNumber(sbatch, {"--nodes", "-N"});
  auto gpus = LauncherNumber(
      launcher, {"--nproc-per-node", "--nproc_per_node", "--ntasks-per-node", "--gpus-per-node"});
  if (!gpus) gpus = variable({"GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE"});
  if (!gpus) gpus = LauncherNumber(sbatch, {"--gpus-per-node", "--ntasks-per-node"});
  if (!nodes && gpus && !launcher.empty()) {
    // torchrun's own default is one node.
    const bool torchrun = std::any_of(launcher.begin(), launcher.end(), [](const ShellWord& word) {
      return word.text.find("torchrun") != std::string::npos ||
             word.text.find("torch.distributed") != std::string::npos;
    });
    const bool told = std::any_of(launcher.begin(), launcher.end(), [](const ShellWord& word) {
      return word.text.find("nnodes") != std::string::npos;
    });
    if (torchrun && !told) nodes = 1;
  }
  if (!nodes || !gpus || *nodes < 1 || *gpus < 1) return {};
  if (*nodes > kMaxGpus || *gpus > kMaxGpus) return {};
  return *nodes * *gpus;
}

struct Given {
  std::vector<std::string> values;
  int line = 0;
};

// A Python list of zeros and ones as scripts write it: "([0]*3+[1]*58)"; empty where it is none.
class PatternReader {
 public:
  explicit PatternReader(std::string_view text) : text_(text) {}
  std::optional<std::vector<bool>> Read() {
    auto all = Sum(0);
    if (!all || at_ != text_.size()) return {};
    return all;
  }

 private:
  using Bits = std::optional<std::vector<bool>>;
  char Peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  Bits Sum(int depth) {
    Bits left = Product(depth);
    while (left && Peek() == '+') {
      ++at_;
      const Bits right = Product(depth);
      if (!right || left->size() + right->size() > kMostLayers) return {};
      left->insert(left->end(), right->begin(), right->end());
    }
    return left;
  }
  Bits Product(int depth) {
    Bits left = Factor(depth);
    while (left && Peek() == '*') {
      ++at_;
      Peek();
      const std::size_t begin = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      const auto times = Integer(text_.substr(begin, at_ - begin));
      if (!times || *times < 0 || *times > kMostLayers ||
          *times * std::int64_t(left->size()) > kMostLayers) {
        return {};
      }
      const std::vector<bool> once = *left;
      left->clear();
      for (std::int64_t i = 0; i < *times; ++i) left->insert(left->end(), once.begin(), once.end());
    }
    return left;
  }
  Bits Factor(int depth) {
    constexpr int kMostDepth = 64;
    if (depth > kMostDepth) return {};
    if (Peek() == '(') {
      ++at_;
      Bits inside = Sum(depth + 1);
      if (Peek() != ')') return {};
      ++at_;
      return inside;
    }
    if (Peek() != '[') return {};
    ++at_;
    std::vector<bool> bits;
    while (Peek() == '0' || Peek() == '1') {
      bits.push_back(text_[at_++] == '1');
      if (Peek() == ',') ++at_;
      if (bits.size() > kMostLayers) return {};
    }
    if (Peek() != ']') return {};
    ++at_;
    return bits;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

class Interpreter {
 public:
  Interpreter(const std::string& file, const MegatronReading& reading)
      : mistakes_(file), file_(file), reading_(reading) {}

  ImportedRun Interpret(const ShellScript& script) {
    const RunWords words = FindRun(file_, script);
    run_.gpus = GpusOfRun(script, words.launcher);
    Gather(words.arguments);
    if (script.conditional_line > 0) {
      Warn(script.conditional_line, "",
           "what stands under a condition is read as if it were always run");
    }
    Refuse();
    Batch();
    if (reading_.model) Model();
    Precisions();
    Degrees();
    Pipeline();
    Sharding();
    Recomputation();
    Offloading();
    Software();
    // By itself an unknown option is left out; beside mistakes it may be the cause of one.
    for (const std::string& unknown : unknown_) {
      if (mistakes_.count() > 0) {
        mistakes_.Add("", unknown);
      } else {
        Warn(0, "", "left out: " + unknown);
      }
    }
    mistakes_.ThrowIfAny();
    run_.job.has_model = reading_.model;
    run_.job.has_training = run_.job.has_parallel = true;
    return std::move(run_);
  }

 private:
  // --- what is given

  void Gather(const ShellCommand& words) {
    bool behind_unknown = false;
    for (std::size_t i = 0; i < words.size();) {
      const ShellWord& word = words[i++];
      const std::string_view text = word.text;
      if (!LooksLikeOption(text)) {
        if (text.find(kUnknown) != std::string_view::npos) {
          Warn(word.line, "", "what only a run can know is left out");
        } else if (!behind_unknown) {
          Warn(word.line, "", fmt::format("\"{}\" belongs to no option", Shown(text)));
        }
        continue;
      }
      behind_unknown = false;
      const std::string_view name = text.substr(0, text.find('='));
      const bool inlined = name.size() < text.size();
      const MegatronOption* option = FindMegatronOption(name);
      if (option == nullptr) {
        // Looking for what was meant takes a while, and beyond a few nobody reads on.
        constexpr std::size_t kMostSuggestions = 8;
        if (unknown_.size() < kMostWarnings) {
          const std::string_view nearest =
              unknown_.size() < kMostSuggestions ? NearestOption(name) : std::string_view();
          unknown_.push_back(
              At(word.line, name,
                 nearest.empty()
                     ? std::string("is no option of Megatron-LM")
                     : fmt::format("is no option of Megatron-LM; did you mean \"{}\"?", nearest)));
        }
        behind_unknown = true;
        continue;
      }
      Given given{.line = word.line};
      if (option->values == OptionValues::kNone && inlined) {
        Mistake(word.line, name, "takes no value");
      } else if (inlined) {
        given.values.emplace_back(text.substr(name.size() + 1));
      } else if (option->values == OptionValues::kOne) {
        if (i < words.size() && !LooksLikeOption(words[i].text)) {
          given.values.push_back(words[i++].text);
        } else {
          Mistake(word.line, name, "expected a value");
          continue;
        }
      } else if (option->values == OptionValues::kMany) {
        while (i < words.size() && !LooksLikeOption(words[i].text)) {
          given.values.push_back(words[i++].text);
        }
      }
      if (!option->read) {
        run_.ignored.emplace_back(name);
        continue;
      }
      const auto [it, first] = given_.try_emplace(std::string(name), given);
      if (!first) {
        if (it->second.values != given.values) {
          Warn(word.line, name,
               fmt::format("is given in line {} too; the last one counts", it->second.line));
        }
        it->second = std::move(given);
      }
    }
  }

  // Among those of about its length.
  static std::string_view NearestOption(std::string_view name) {
    constexpr std::size_t kMostMore = 5;
    std::vector<std::string_view> names;
    for (const MegatronOption& option : MegatronOptions()) {
      if (option.name.size() <= name.size() + kMostMore &&
          name.size() <= option.name.size() + kMostMore) {
        names.push_back(option.name);
      }
    }
    return NearestName(name, names);
  }

  static std::string Shown(std::string_view text) { return Printable(text, kMostNameShown); }
  static std::string At(int line, std::string_view option, std::string_view what) {
    const std::string shown = option.empty() ? std::string() : Shown(option) + ": ";
    return line > 0 ? fmt::format("line {}: {}{}", line, shown, what)
                    : fmt::format("{}{}", shown, what);
  }
  void Mistake(int line, std::string_view option, std::string_view what) {
    mistakes_.Add("", At(line, option, what));
  }
  void Mistake(std::string_view option, std::string_view what) {
    Mistake(LineOf(option), option, what);
  }
  void Warn(int line, std::string_view option, std::string_view what) {
    if (run_.warnings.size() < kMostWarnings) run_.warnings.push_back(At(line, option, what));
  }
  void Warn(std::string_view option, std::string_view what) { Warn(LineOf(option), option, what); }

  const Given* Find(std::string_view option) const {
    const auto it = given_.find(std::string(option));
    return it == given_.end() ? nullptr : &it->second;
  }
  bool Has(std::string_view option) const { return Find(option) != nullptr; }
  int LineOf(std::string_view option) const {
    const Given* given = Find(option);
    return given == nullptr ? 0 : given->line;
  }

  // The text of an option, empty where it is not given or cannot be known.
  std::optional<std::string> Text(std::string_view option) {
    const Given* given = Find(option);
    if (given == nullptr || given->values.empty()) return {};
    const std::string& value = given->values.front();
    if (value.find(kUnknown) == std::string::npos) return value;
    Mistake(option, "its value is known only when the script runs; write it out");
    return {};
  }
  std::optional<std::int64_t> Int(std::string_view option, IntRange range) {
    const std::optional<std::string> text = Text(option);
    if (!text) return {};
    const std::optional<std::int64_t> value = Integer(*text);
    if (value && *value >= range.min && *value <= range.max) return value;
    Mistake(option, fmt::format("expected an integer from {} to {}, got \"{}\"", range.min,
                                range.max, Shown(*text)));
    return {};
  }
  template <class T>
  bool Set(T& field, std::string_view option, IntRange range) {
    const std::optional<std::int64_t> value = Int(option, range);
    if (value) field = static_cast<T>(*value);
    return value.has_value();
  }
  template <class T>
  void Need(T& field, std::string_view option, IntRange range) {
    if (Has(option)) {
      Set(field, option, range);
    } else {
      Mistake(0, option, "missing");
    }
  }
  std::optional<double> Number(std::string_view option) {
    const std::optional<std::string> text = Text(option);
    if (!text) return {};
    double value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error == std::errc() && end == text->data() + text->size() && std::isfinite(value)) {
      return value;
    }
    Mistake(option, fmt::format("expected a number, got \"{}\"", Shown(*text)));
    return {};
  }
  // One of `words`; what was not given is empty, and so is what is none of them.
  std::string Choice(std::string_view option, std::span<const std::string_view> words) {
    const std::optional<std::string> text = Text(option);
    if (!text) return {};
    if (std::find(words.begin(), words.end(), *text) != words.end()) return *text;
    std::string list;
    for (const std::string_view word : words)
      list += fmt::format("{}{}", list.empty() ? "" : ", ", word);
    const std::string_view nearest = NearestName(*text, words);
    Mistake(option, fmt::format("expected one of {}, got \"{}\"{}", list, Shown(*text),
                                nearest.empty() ? std::string()
                                                : fmt::format("; did you mean \"{}\"?", nearest)));
    return {};
  }
  std::string Choice(std::string_view option, std::initializer_list<std::string_view> words) {
    return Choice(option, std::span(words.begin(), words.size()));
  }
  void Contradict(std::string_view a, std::string_view b) {
    if (Has(a) && Has(b)) {
      Mistake(b, fmt::format("contradicts {} in line {}", a, LineOf(a)));
    }
  }

  // --- what it means

  void Refuse() {
    static constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
        {"--yaml-cfg", "the options are in another file, which is not read"},
        {"--use-checkpoint-args", "the options are in a checkpoint, which is not read"},
        {"--heterogeneous-layers-config-path", "layers of several shapes are not modelled"},
        {"--heterogeneous-layers-config-encoded-json", "layers of several shapes are not modelled"},
        {"--is-hybrid-model", "Mamba layers are not modelled"},
        {"--hybrid-attention-ratio", "Mamba layers are not modelled"},
        {"--hybrid-mlp-ratio", "Mamba layers are not modelled"},
        {"--hybrid-override-pattern", "Mamba layers are not modelled"},
        {"--hybrid-layer-pattern", "Mamba layers are not modelled"},
        {"--perform-rl-step", "reinforcement learning is not modelled"},
    };
    for (const auto& [option, why] : kRefused) {
      if (Has(option)) Mistake(option, why);
    }
    static constexpr std::pair<std::string_view, std::string_view> kDoubtful[] = {
        {"--optimizer-cpu-offload", "is not modelled: the optimizer is costed on the GPU"},
        {"--use-legacy-models", "is costed as Megatron-Core"},
        {"--deterministic-mode", "is slower than predicted"},
        {"--spec", "what a specification of layers changes is not known here"},
        {"--rampup-batch-size", "is costed at its end, the global batch size"},
        {"--fp32-residual-connection", "is costed with BF16 residuals"},
        {"--apply-residual-connection-post-layernorm", "costs what the usual order costs"},
        {"--distribute-saved-activations", "is not modelled: each tensor rank keeps the input"},
        {"--qk-l2-norm", "is costed as --qk-layernorm"},
        {"--microbatch-group-size-per-virtual-pipeline-stage",
         "is not modelled: groups of pp micro-batches are costed"},
    };
    for (const auto& [option, why] : kDoubtful) {
      if (Has(option)) Warn(option, why);
    }
    if (const auto text = Text("--optimizer"); text && *text != "adam") {
      Warn("--optimizer", "is costed as Adam");
    }
  }

  void Batch() {
    TrainingConfig& t = run_.job.training;
    t = {};
    const bool encoder = !Has("--seq-length") && Has("--encoder-seq-length");
    Need(t.seq_length, encoder ? "--encoder-seq-length" : "--seq-length", {1, kMostBatch});
    const bool old = !Has("--micro-batch-size") && Has("--batch-size");
    Need(run_.job.parallel.micro_batch_size, old ? "--batch-size" : "--micro-batch-size",
         {1, kMostDegree});
    Set(t.global_batch_size, "--global-batch-size", {1, kMostBatch});
    const bool older = !Has("--tensor-model-parallel-size") && Has("--model-parallel-size");
    tensor_ =
        Int(older ? "--model-parallel-size" : "--tensor-model-parallel-size", {1, kMostDegree});
  }

  void Model() {
    ModelConfig& m = run_.job.model;
    m.name = Shown(std::filesystem::path(file_).stem().string());
    m.architecture = "gpt";
    const bool encoder = !Has("--num-layers") && Has("--encoder-num-layers");
    Need(m.num_layers, encoder ? "--encoder-num-layers" : "--num-layers", {1, kMostLayers});
    Need(m.hidden_size, "--hidden-size", {1, kMostHidden});
    Need(m.num_attention_heads, "--num-attention-heads", {1, kMostHeads});
    Need(m.max_position_embeddings, "--max-position-embeddings", {1, kMostPositions});
    AttentionOptions(m);
    MlpOptions(m);
    m.normalization = Choice("--normalization", {"LayerNorm", "RMSNorm"}) == "RMSNorm"
                          ? Normalization::kRmsNorm
                          : Normalization::kLayerNorm;
    Positions(m);
    Vocabulary(m);
    m.tied_embeddings = !Has("--untie-embeddings-and-output-weights");
    m.attention_dropout = Number("--attention-dropout").value_or(0.1) != 0;
    m.hidden_dropout = Number("--hidden-dropout").value_or(0.1) != 0;
    Set(m.mtp_num_layers, "--mtp-num-layers", {0, kMostLayers});
    Experts(m);
    Layers(m);
    if (mistakes_.count() > 0) return;  // what follows would only repeat them
    if (m.kv_channels == 0 && !m.latent && m.hidden_size % m.num_attention_heads != 0) {
      Mistake("--num-attention-heads",
              fmt::format("{} do not divide the hidden size {}, and no --kv-channels is given",
                          m.num_attention_heads, m.hidden_size));
      return;
    }
    FillDefaults(m);
    for (const Inconsistency& found : Inconsistencies(m)) {
      Mistake(0, fmt::format("model: {}", found.field), found.what);
    }
    const std::int64_t seq = run_.job.training.seq_length;
    if (seq > m.max_position_embeddings && m.max_position_embeddings > 0) {
      Mistake("--seq-length", fmt::format("{} tokens are more than --max-position-embeddings {}",
                                          seq, m.max_position_embeddings));
    }
  }

  void AttentionOptions(ModelConfig& m) {
    Set(m.kv_channels, "--kv-channels", {1, kMostHeadSize});
    if (Has("--group-query-attention")) {
      m.num_query_groups = 1;  // Megatron's default
      Set(m.num_query_groups, "--num-query-groups", {1, kMostHeads});
    } else if (Has("--num-query-groups")) {
      Warn("--num-query-groups", "has no effect without --group-query-attention");
    }
    // Under latent attention they are of what is projected down, which has norms in any case.
    m.qk_layernorm =
        (Has("--qk-layernorm") || Has("--qk-l2-norm")) && !Has("--multi-latent-attention");
    const std::string softmax = Choice("--softmax-type", {"vanilla", "learnable", "off-by-one"});
    m.attention_sinks = softmax == "learnable";
    if (!Has("--multi-latent-attention")) return;
    m.latent = true;
    m.num_query_groups = 0;
    m.mla = {.q_lora_rank = 0,
             .kv_lora_rank = 32,
             .qk_nope_head_dim = 128,
             .qk_rope_head_dim = 64,
             .v_head_dim = 128};
    Set(m.mla.q_lora_rank, "--q-lora-rank", {0, kMostHidden});
    Set(m.mla.kv_lora_rank, "--kv-lora-rank", {1, kMostHidden});
    Set(m.mla.qk_nope_head_dim, "--qk-head-dim", {1, kMostHeadSize});
    Set(m.mla.qk_rope_head_dim, "--qk-pos-emb-head-dim", {1, kMostHeadSize});
    Set(m.mla.v_head_dim, "--v-head-dim", {1, kMostHeadSize});
  }

  void MlpOptions(ModelConfig& m) {
    Contradict("--swiglu", "--squared-relu");
    Contradict("--swiglu", "--quick-geglu");
    Contradict("--squared-relu", "--quick-geglu");
    m.gated_linear_unit = Has("--swiglu") || Has("--quick-geglu");
    m.activation = Has("--swiglu")         ? Activation::kSilu
                   : Has("--squared-relu") ? Activation::kSquaredRelu
                                           : Activation::kGelu;
    if (!Set(m.ffn_hidden_size, "--ffn-hidden-size", {1, kMostFfn}) && Has("--swiglu")) {
      m.ffn_hidden_size = m.hidden_size * 8 / 3 / 64 * 64;  // as Megatron rounds it
    }
    const bool biased = !Has("--disable-bias-linear");
    m.add_qkv_bias = biased || Has("--add-qkv-bias");
    m.add_attention_output_bias = m.add_mlp_bias = biased;
  }

  void Positions(ModelConfig& m) {
    const std::string type =
        Choice("--position-embedding-type",
               {"learned_absolute", "rope", "yarn", "mrope", "relative", "none"});
    m.position_embedding = PositionEmbedding::kLearned;
    if (type == "rope" || type == "yarn" || type == "mrope" ||
        Has("--use-rotary-position-embeddings")) {
      m.position_embedding = PositionEmbedding::kRope;
    } else if (type == "relative") {
      Mistake("--position-embedding-type", "relative positions are not modelled");
    } else if (type == "none" || Has("--no-position-embedding")) {
      m.position_embedding = PositionEmbedding::kNone;
    }
  }

  void Vocabulary(ModelConfig& m) {
    if (reading_.vocab) {
      m.vocab_size = *reading_.vocab;
      return;
    }
    if (Set(m.vocab_size, "--padded-vocab-size", {1, kMostVocabulary})) return;
    std::int64_t tokens = 0;
    if (!Set(tokens, "--vocab-size", {1, kMostVocabulary}) && !Has("--vocab-size")) {
      const std::string tokenizer = Text("--tokenizer-type").value_or("");
      if (tokenizer == "GPT2BPETokenizer") tokens = 50257;  // OpenAI, GPT-2 report, section 2.2
      if (tokenizer == "Llama2Tokenizer") tokens = 32000;   // arXiv:2307.09288, section 2.2
      if (tokens == 0) {
        Mistake(0, "--vocab-size",
                "missing: the vocabulary is the tokenizer's, which is not read; give --vocab");
      }
    }
    std::int64_t multiple = 128, tensor = 1;
    Set(multiple, "--make-vocab-size-divisible-by", {1, kMostVocabulary});
    if (tensor_) tensor = *tensor_;
    const std::int64_t step = multiple * tensor;
    m.vocab_size = (tokens + step - 1) / step * step;
    if (m.vocab_size > kMostVocabulary) {
      Mistake("--make-vocab-size-divisible-by",
              fmt::format("{} tokens padded to a multiple of {} x tp {} are too many", tokens,
                          multiple, tensor));
    }
  }

  void Experts(ModelConfig& m) {
    MixtureOfExperts& e = m.moe;
    Set(e.num_experts, "--num-experts", {0, kMostExperts});
    if (e.num_experts == 0) return;
    e.topk = 2;  // Megatron's default
    Set(e.topk, "--moe-router-topk", {1, kMostExperts});
    e.ffn_hidden_size = m.ffn_hidden_size > 0 ? m.ffn_hidden_size : 4 * m.hidden_size;
    Set(e.ffn_hidden_size, "--moe-ffn-hidden-size", {1, kMostFfn});
    Set(e.shared_expert_ffn_hidden_size, "--moe-shared-expert-intermediate-size", {1, kMostFfn});
    e.shared_expert_gate = Has("--moe-shared-expert-gate");
    Set(e.num_groups, "--moe-router-num-groups", {1, kMostExperts});
    Set(e.topk_groups, "--moe-router-group-topk", {1, kMostExperts});
    e.router_correction_bias = Has("--moe-router-enable-expert-bias");
    e.normalize_topk = !Has("--moe-router-pre-softmax");
  }

  // A bit a layer; `period` is what a plain number N means for layer i.
  template <class Period>
  std::vector<bool> Pattern(std::string_view option, int layers, const Period& period) {
    const std::optional<std::string> text = Text(option);
    if (!text) return {};
    if (const std::optional<std::int64_t> every = Integer(*text)) {
      std::vector<bool> bits;
      if (*every < 1 || *every > kMostLayers) {
        Mistake(option, fmt::format("expected at least 1, got \"{}\"", Shown(*text)));
        return {};
      }
      for (int i = 0; i < layers; ++i) bits.push_back(period(i, int(*every)));
      return bits;
    }
    const std::optional<std::vector<bool>> bits = PatternReader(*text).Read();
    if (!bits) {
      Mistake(option, fmt::format("expected a number or a list such as ([0]*3+[1]*58), got \"{}\"",
                                  Shown(*text)));
    } else if (int(bits->size()) != layers) {
      Mistake(option, fmt::format("is of {} layers, and the model has {}", bits->size(), layers));
    } else {
      return *bits;
    }
    return {};
  }

  void Layers(ModelConfig& m) {
    const bool moe = m.moe.num_experts > 0;
    std::vector<bool> experts =
        Pattern("--moe-layer-freq", m.num_layers, [](int i, int n) { return i % n == 0; });
    if (!moe) experts.clear();
    std::vector<bool> windowed = Pattern("--window-attn-skip-freq", m.num_layers,
                                         [](int i, int n) { return (i + 1) % n != 0; });
    std::int64_t window = 0;
    if (const std::optional<std::string> text = Text("--window-size")) {
      // "(left,right)" or "left,right": so many keys before and behind a query's own.
      std::string plain;
      for (const char c : *text) {
        if (c != '(' && c != ')' && c != ' ') plain += c;
      }
      const std::size_t comma = std::min(plain.find(','), plain.size());
      const auto left = Integer(std::string_view(plain).substr(0, comma));
      if (!left || *left < 0 || *left >= kMostPositions || comma == plain.size()) {
        Mistake("--window-size",
                fmt::format("expected LEFT,RIGHT in keys, got \"{}\"", Shown(*text)));
      } else {
        window = *left + 1;
      }
    } else if (Has("--window-attn-skip-freq")) {
      Warn("--window-attn-skip-freq", "has no effect without --window-size");
    }
    for (int i = 0; i < m.num_layers; ++i) {
      const auto at = std::size_t(i);
      const LayerKind kind{.moe = moe && (experts.empty() || experts[at]),
                           .sliding_window = windowed.empty() || windowed[at] ? window : 0};
      if (m.layers.empty() || m.layers.back().kind != kind) m.layers.push_back({.kind = kind});
      ++m.layers.back().count;
    }
  }

  // Whether BF16 weights stay beside quantised ones.
  bool KeepsBf16Weights(Precision precision) const {
    switch (precision) {
      case Precision::kFp16:
      case Precision::kBf16:
        return false;
      case Precision::kFp8:
      case Precision::kMxfp8:
        return !Has("--fp8-param-gather");
      case Precision::kNvfp4:
        return !Has("--fp4-param-gather");
    }
    return false;
  }

  void Precisions() {
    TrainingConfig& t = run_.job.training;
    Contradict("--bf16", "--fp16");
    Contradict("--fp8-format", "--fp4-format");
    if (!Has("--bf16") && !Has("--fp16")) {
      Mistake(0, "--bf16", "missing: training in fp32 is not modelled; expected --bf16 or --fp16");
    }
    const bool fp16 = Has("--fp16");
    t.precision = fp16 ? Precision::kFp16 : Precision::kBf16;
    Choice("--fp8-format", {"e4m3", "hybrid"});
    const std::string recipe =
        Choice("--fp8-recipe", {"tensorwise", "delayed", "mxfp8", "blockwise", "custom"});
    if (Has("--fp8-format")) {
      t.precision = recipe == "mxfp8" ? Precision::kMxfp8 : Precision::kFp8;
      if (recipe == "blockwise" || recipe == "custom") {
        Warn("--fp8-recipe", "is costed as per-tensor scaling");
      }
    } else if (Has("--fp8-recipe")) {
      Warn("--fp8-recipe", "has no effect without --fp8-format");
    }
    if (Has("--fp4-format")) {
      Choice("--fp4-format", {"e2m1"});
      t.precision = Precision::kNvfp4;
    }
    t.bf16_weights = KeepsBf16Weights(t.precision);
    const bool bf16_main = Choice("--main-grads-dtype", {"fp32", "bf16"}) == "bf16";
    Contradict("--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32");
    if (fp16) {
      t.gradient_bytes = Has("--accumulate-allreduce-grads-in-fp32") ? 4 : 2;
    } else {
      t.gradient_bytes = Has("--grad-reduce-in-bf16") || bf16_main ? 2 : 4;
    }
    const auto bytes = [&](std::string_view option) {
      const std::string type = Choice(option, {"fp32", "fp16", "bf16", "fp8"});
      return type == "fp8" ? 1 : type == "bf16" || type == "fp16" ? 2 : 4;
    };
    const int moments = bytes("--exp-avg-dtype") + bytes("--exp-avg-sq-dtype");
    if (Has("--use-precision-aware-optimizer")) {
      t.moment_bytes = moments;
    } else if (moments != 8) {
      Warn(Has("--exp-avg-dtype") ? "--exp-avg-dtype" : "--exp-avg-sq-dtype",
           "has no effect without --use-precision-aware-optimizer");
    }
  }

  void Degrees() {
    ParallelConfig& p = run_.job.parallel;
    TrainingConfig& t = run_.job.training;
    if (tensor_) p.tensor = int(*tensor_);
    p.sequence_parallel = Has("--sequence-parallel") && p.tensor > 1;
    if (Has("--sequence-parallel") && p.tensor == 1) {
      Warn("--sequence-parallel", "has no effect at tensor parallel 1");
    }
    t.tp_comm_overlap = Has("--tp-comm-overlap");
    if (t.tp_comm_overlap && !p.sequence_parallel) {
      Mistake("--tp-comm-overlap", "needs --sequence-parallel");
    }
    Set(p.context, "--context-parallel-size", {1, kMostDegree});
    ContextKind(p);
    Set(p.expert, "--expert-model-parallel-size", {1, kMostDegree});
    // Without experts it says how many ranks share what is not there (parallel_state.py).
    int expert_tensor = p.tensor;
    Set(expert_tensor, "--expert-tensor-parallel-size", {1, kMostDegree});
    p.expert_tensor = Has("--num-experts") ? expert_tensor : 1;
  }

  void ContextKind(ParallelConfig& p) {
    constexpr std::string_view kSizes = "--hierarchical-context-parallel-sizes";
    const Given* given = Find("--cp-comm-type");
    if (given == nullptr || given->values.empty()) {
      if (Has(kSizes)) Warn(kSizes, "has no effect without --cp-comm-type a2a+p2p");
      return;
    }
    static constexpr std::string_view kKinds[] = {"p2p", "a2a", "allgather", "a2a+p2p"};
    for (const std::string& value : given->values) {
      if (std::find(std::begin(kKinds), std::end(kKinds), value) == std::end(kKinds)) {
        Mistake("--cp-comm-type",
                fmt::format("expected p2p, a2a, allgather or a2a+p2p, got \"{}\"", Shown(value)));
        return;
      }
    }
    const std::string& first = given->values.front();
    p.context_kind = first == "a2a" ? ContextParallelKind::kUlysses : ContextParallelKind::kRing;
    if (first == "a2a+p2p") {
      NestedContext(p, kSizes);
    } else if (Has(kSizes)) {
      Warn(kSizes, "has no effect without --cp-comm-type a2a+p2p");
    }
    if (std::any_of(given->values.begin(), given->values.end(),
                    [&](const std::string& v) { return v != first; })) {
      Warn("--cp-comm-type", fmt::format("differs between layers; all are costed as {}", first));
    } else if (first == "allgather") {
      Warn("--cp-comm-type", "allgather is costed as a ring");
    }
    if (const std::string why = RefusedExchange(run_.job.model, p);
        reading_.model && !why.empty()) {
      Warn("--cp-comm-type", fmt::format("is costed, but would not run: {}", why));
    }
  }

  // Of a2a+p2p the ranks of an all-to-all, then those of the ring of them.
  void NestedContext(ParallelConfig& p, std::string_view option) {
    const Given* given = Find(option);
    if (given == nullptr) {
      Mistake("--cp-comm-type", fmt::format("a2a+p2p needs {}", option));
      return;
    }
    std::string got;
    std::int64_t product = 1;
    std::vector<std::int64_t> sizes;
    for (const std::string& text : given->values) {
      got += got.empty() ? text : ' ' + text;
      const std::optional<std::int64_t> size = Integer(text);
      sizes.push_back(size && *size >= 1 && *size <= p.context ? *size : 0);
      product *= product <= p.context ? sizes.back() : 1;
    }
    if (sizes.size() != 2 || product != p.context) {
      Mistake(option, fmt::format("expected two sizes whose product is "
                                  "--context-parallel-size {}, got \"{}\"",
                                  p.context, Shown(got)));
      return;
    }
    if (sizes[0] == 1) return;  // a plain ring
    p.context_kind = sizes[1] == 1 ? ContextParallelKind::kUlysses : ContextParallelKind::kNested;
    if (sizes[1] > 1) p.context_ulysses = int(sizes[0]);
  }

  void Pipeline() {
    ParallelConfig& p = run_.job.parallel;
    Set(p.pipeline, "--pipeline-model-parallel-size", {1, kMostDegree});
    Contradict("--pipeline-model-parallel-layout", "--num-layers-per-virtual-pipeline-stage");
    Contradict("--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank");
    Contradict("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank");
    Set(p.virtual_stages, "--num-virtual-stages-per-pipeline-rank", {1, kMostDegree});
    run_.job.training.overlap_p2p = !Has("--no-overlap-p2p-communication");
    const std::vector<int> chunks = Chunks(p);
    p.schedule = p.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B;
    if (chunks.empty() || mistakes_.count() > 0) return;
    const std::vector<int> ours = reading_.model
                                      ? LayersPerChunk(run_.job.model, p.pipeline, p.virtual_stages)
                                      : std::vector<int>(chunks.size(), chunks.front());
    if (chunks != ours) p.stage_layers = chunks;
  }

  // Layers of each chunk in the order of a micro-batch; empty where the model is not known.
  std::vector<int> Chunks(ParallelConfig& p) {
    int layers = run_.job.model.num_layers;
    if (const std::optional<std::string> layout = Text("--pipeline-model-parallel-layout")) {
      return ChunksOfLayout(p, *layout);
    }
    if (layers == 0) {
      if (reading_.model) return {};
      // The model comes from elsewhere; what the stages are checked against is the script's.
      const bool encoder = !Has("--num-layers");
      Set(layers, encoder ? "--encoder-num-layers" : "--num-layers", {1, kMostLayers});
      if (layers == 0) return {};
    }
    const bool embedding = Has("--account-for-embedding-in-pipeline-split");
    const bool loss = Has("--account-for-loss-in-pipeline-split");
    const int slots = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
    std::int64_t first = 0, last = 0;
    const bool has_first = Set(first, "--decoder-first-pipeline-num-layers", {1, kMostLayers});
    const bool has_last = Set(last, "--decoder-last-pipeline-num-layers", {1, kMostLayers});
    std::int64_t per_chunk = 0;
    if (Set(per_chunk, "--num-layers-per-virtual-pipeline-stage", {1, kMostLayers})) {
      if (slots % p.pipeline != 0 || slots / p.pipeline % per_chunk != 0) {
        Mistake("--num-layers-per-virtual-pipeline-stage",
                fmt::format("{} layers cannot be put into {} pipeline ranks in chunks of {}", slots,
                            p.pipeline, per_chunk));
        return {};
      }
      p.virtual_stages = int(slots / p.pipeline / per_chunk);
    }
    const int v = p.virtual_stages;
    if (std::int64_t{p.pipeline} * v > layers + 2)
      return {};  // too many stages: CheckPlan's matter
    std::vector<int> chunks;
    if (has_first || has_last) {
      const int others = p.pipeline - (has_first ? 1 : 0) - (has_last ? 1 : 0);
      const std::int64_t rest = layers - first - last;
      if (others < 0 || rest < 0 ||
          (others == 0 ? rest != 0 : rest % (std::int64_t{others} * v) != 0) || first % v != 0 ||
          last % v != 0) {
        Mistake(has_first ? "--decoder-first-pipeline-num-layers"
                          : "--decoder-last-pipeline-num-layers",
                fmt::format("the other {} layers cannot be divided evenly", rest));
        return {};
      }
      for (int chunk = 0; chunk < v; ++chunk) {
        for (int rank = 0; rank < p.pipeline; ++rank) {
          const bool is_first = has_first && rank == 0;
          const bool is_last = has_last && rank == p.pipeline - 1;
          const std::int64_t of_rank = is_first ? first : is_last ? last : rest / others;
          chunks.push_back(int(of_rank / v));
        }
      }
      return chunks;
    }
    if (slots % (p.pipeline * v) != 0) {
      Mistake(v > 1 ? "--num-virtual-stages-per-pipeline-rank" : "--pipeline-model-parallel-size",
              fmt::format("{} layers cannot be divided evenly among {} stages; Megatron-LM wants a "
                          "--pipeline-model-parallel-layout",
                          slots, p.pipeline * v));
      return {};
    }
    chunks.assign(std::size_t(p.pipeline) * std::size_t(v), slots / (p.pipeline * v));
    if (embedding) --chunks.front();
    if (loss) --chunks.back();
    return chunks;
  }

  std::vector<int> ChunksOfLayout(ParallelConfig& p, const std::string& layout) {
    constexpr std::string_view kOption = "--pipeline-model-parallel-layout";
    std::vector<LayoutStage> stages;
    try {
      stages = ParsePipelineLayout(layout);
    } catch (const ConfigError& error) {
      Mistake(kOption, error.what());
      return {};
    }
    if (stages.size() % std::size_t(p.pipeline) != 0) {
      Mistake(kOption, fmt::format("{} stages cannot be shared out evenly among {} pipeline ranks",
                                   stages.size(), p.pipeline));
      return {};
    }
    p.virtual_stages = int(stages.size() / std::size_t(p.pipeline));
    std::vector<int> chunks;
    std::int64_t layers = 0, mtp = 0;
    for (const LayoutStage& stage : stages) {
      chunks.push_back(stage.layers);
      layers += stage.layers;
      mtp += stage.mtp_layers;
    }
    if (mtp > 0 && stages.back().mtp_layers != mtp) {
      Warn(kOption, "multi-token-prediction modules are costed on the last stage");
    }
    const ModelConfig& m = run_.job.model;
    if (reading_.model && layers != m.num_layers) {
      Mistake(kOption, fmt::format("has {} layers, and the model {}", layers, m.num_layers));
    }
    if (reading_.model && mtp != m.mtp_num_layers) {
      Mistake(kOption, fmt::format("has {} multi-token-prediction modules, and the model {}", mtp,
                                   m.mtp_num_layers));
    }
    return chunks;
  }

  void Sharding() {
    ParallelConfig& p = run_.job.parallel;
    TrainingConfig& t = run_.job.training;
    if (Has("--use-tp-pp-dp-mapping")) p.order = RankOrder::kPipelineInside;
    p.zero = Has("--use-distributed-optimizer") ? 1 : 0;
    const std::string strategy = Choice("--data-parallel-sharding-strategy",
                                        {"no_shard", "optim", "optim_grads", "optim_grads_params"});
    if (Has("--use-megatron-fsdp") || Has("--use-custom-fsdp")) {
      p.zero = strategy == "optim_grads_params" ? 3
               : strategy == "optim_grads"      ? 2
               : strategy == "optim"            ? 1
                                                : 0;
    } else if (Has("--data-parallel-sharding-strategy")) {
      Warn("--data-parallel-sharding-strategy", "has no effect without --use-megatron-fsdp");
    }
    if (Has("--use-torch-fsdp2")) {
      Contradict("--use-distributed-optimizer", "--use-torch-fsdp2");
      p.zero = Has("--torch-fsdp2-no-reshard-after-forward") ? 2 : 3;
    }
    Set(run_.optimizer_instances, "--num-distributed-optimizer-instances", {1, kMostDegree});
    if (run_.optimizer_instances > 1 && p.zero == 0) {
      Mistake("--num-distributed-optimizer-instances", "needs --use-distributed-optimizer");
    }
    t.overlap_grad_reduce = Has("--overlap-grad-reduce") || Has("--use-torch-fsdp2");
    t.overlap_param_gather =
        p.zero == 0 || Has("--overlap-param-gather") || Has("--use-torch-fsdp2");
    if (Has("--overlap-param-gather") && !Has("--overlap-grad-reduce")) {
      Mistake("--overlap-param-gather", "needs --overlap-grad-reduce");
    }
    if (Has("--overlap-param-gather") && p.zero == 0) {
      Mistake("--overlap-param-gather", "needs --use-distributed-optimizer");
    }
  }

  void Recomputation() {
    Recompute& r = run_.job.parallel.recompute;
    const std::string granularity = Choice("--recompute-granularity", {"full", "selective"});
    const std::string method = Choice("--recompute-method", {"uniform", "block"});
    std::int64_t layers = 1;
    const bool has_layers = Set(layers, "--recompute-num-layers", {1, kMostLayers});
    const Given* modules = Find("--recompute-modules");
    if (granularity == "full" || Has("--checkpoint-activations")) {
      r.granularity = RecomputeGranularity::kFull;
      if (modules != nullptr) {
        Mistake("--recompute-modules", "goes with --recompute-granularity selective");
      }
      if (method == "block") {
        r.full_layers = int(layers);
      } else if (layers > 1) {
        Warn("--recompute-num-layers",
             fmt::format("{} layers keep one input; costed with one a layer", layers));
      }
      if (granularity == "full" && method.empty() && !Has("--recompute-method")) {
        Mistake("--recompute-granularity", "full needs --recompute-method uniform or block");
      }
      return;
    }
    const bool selective = granularity == "selective" || Has("--recompute-activations");
    if (selective && !method.empty()) {
      Mistake("--recompute-method", "goes with --recompute-granularity full");
    }
    if (!selective) {
      if (modules != nullptr) {
        Mistake("--recompute-modules", "needs --recompute-granularity selective");
      }
      if (!method.empty() || has_layers) {
        Warn(has_layers ? "--recompute-num-layers" : "--recompute-method",
             "has no effect without --recompute-granularity full");
      }
    } else {
      Modules(r, modules);
    }
    if (Has("--moe-layer-recompute")) AddModule(r, RecomputeModule::kMoe);
  }

  // Of whole layers: the first so many of the model, their copies spread over all.  As
  // transformer_config.py has it.
  void Offloading() {
    const Job& job = run_.job;
    Recompute& r = run_.job.parallel.recompute;
    if (!Set(r.offload_layers, "--cpu-offloading-num-layers", {0, kMostLayers})) return;
    if (r.offload_layers == 0) return;
    if (reading_.model && r.offload_layers >= job.model.num_layers) {
      Mistake("--cpu-offloading-num-layers",
              fmt::format("offloads fewer than the {} layers", job.model.num_layers));
    }
    if (job.parallel.pipeline > 1) {
      Mistake("--cpu-offloading-num-layers", "does not go with pipeline parallelism");
    }
    if (r.granularity != RecomputeGranularity::kNone) {
      Mistake("--cpu-offloading-num-layers", "does not go with recomputation");
    }
  }

  static void AddModule(Recompute& r, RecomputeModule module) {
    r.granularity = RecomputeGranularity::kSelective;
    if (std::find(r.modules.begin(), r.modules.end(), module) == r.modules.end()) {
      r.modules.push_back(module);
    }
  }

  void Modules(Recompute& r, const Given* given) {
    if (given == nullptr || given->values.empty()) {
      return AddModule(r, RecomputeModule::kCoreAttn);  // Megatron's default
    }
    std::vector<std::string_view> words;
    for (const auto& n : RecomputeModuleNames()) words.push_back(n.name);
    for (const std::string& value : given->values) {
      const auto names = RecomputeModuleNames();
      const auto found =
          std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.name == value; });
      if (found != names.end()) {
        AddModule(r, found->value);
      } else if (value == "shared_experts") {
        Warn("--recompute-modules", "shared_experts is not modelled: they are kept");
      } else {
        const std::string_view nearest = NearestName(value, words);
        Mistake("--recompute-modules",
                fmt::format("expected core_attn, mlp, moe, moe_act, layernorm, mla_up_proj or "
                            "shared_experts, got \"{}\"{}",
                            Shown(value),
                            nearest.empty() ? std::string()
                                            : fmt::format("; did you mean \"{}\"?", nearest)));
      }
    }
  }

  void Software() {
    TrainingConfig& t = run_.job.training;
    const std::string backend =
        Choice("--attention-backend", {"flash", "fused", "unfused", "local", "auto"});
    t.flash_attention = backend != "unfused" && backend != "local";
    t.fp8_activation_store = Has("--activation-func-fp8-input-store");
    // Megatron's own, the default, keeps fp32 logits (core/fusions/fused_cross_entropy.py).
    t.fused_cross_entropy = Has("--cross-entropy-loss-fusion") &&
                            Choice("--cross-entropy-fusion-impl", {"native", "te"}) == "te";

    const std::string graph =
        Choice("--cuda-graph-impl", {"none", "local", "transformer_engine", "full_iteration"});
    const Given* scope = Find("--cuda-graph-scope");
    if (scope == nullptr) scope = Find("--cuda-graph-modules");  // its name since 2026
    const bool whole =
        scope != nullptr && std::any_of(scope->values.begin(), scope->values.end(),
                                        [](const std::string& v) { return v == "full_iteration"; });
    const bool full = whole || graph == "full_iteration";
    const bool graphed = (!graph.empty() && graph != "none") || Has("--enable-cuda-graph") ||
                         Has("--external-cuda-graph");
    t.cuda_graph = !graphed ? CudaGraph::kNone : full ? CudaGraph::kFull : CudaGraph::kPartial;
    if (scope != nullptr && !graphed) Warn("--cuda-graph-scope", "has no effect without a graph");

    if (!Has("--num-experts")) return;
    const std::string dispatcher =
        Choice("--moe-token-dispatcher-type", {"allgather", "alltoall", "flex"});
    const std::string flex =
        Choice("--moe-flex-dispatcher-backend", {"deepep", "deepepv2", "hybridep", "ncclep"});
    t.moe_dispatcher = dispatcher == "flex" && (Has("--moe-enable-deepep") || !flex.empty())
                           ? MoeDispatcher::kDeepEp
                           : MoeDispatcher::kAllToAll;
    if (dispatcher != "alltoall" && t.moe_dispatcher != MoeDispatcher::kDeepEp &&
        run_.job.parallel.expert > 1) {
      Warn("--moe-token-dispatcher-type",
           fmt::format("{} is costed as alltoall",
                       dispatcher.empty() ? "allgather, the default," : dispatcher.c_str()));
    }
    t.moe_token_drop = Has("--moe-expert-capacity-factor");
    t.expert_overlap = Has("--overlap-moe-expert-parallel-comm");
  }

  Mistakes mistakes_;
  const std::string& file_;
  const MegatronReading& reading_;
  std::map<std::string, Given> given_;
  std::vector<std::string> unknown_;
  std::optional<std::int64_t> tensor_;
  ImportedRun run_;
};

}  // namespace

ImportedRun ReadMegatronArgs(const std::string& file, std::string_view text,
                             const MegatronReading& reading) {
  const ShellScript script = ReadShell(file, text);
  return Interpreter(file, reading).Interpret(script);
}

Job PlacedOn(const ImportedRun& run, std::int64_t gpus, std::vector<std::string>& problems) {
  Job job = run.job;
  ParallelConfig& p = job.parallel;
  const double model_ranks = 1.0 * p.tensor * p.context * p.pipeline;
  if (model_ranks > double(gpus) || std::fmod(double(gpus), model_ranks) != 0) {
    problems.push_back(fmt::format("{} GPUs are not a multiple of tp {} x cp {} x pp {}", gpus,
                                   p.tensor, p.context, p.pipeline));
    return job;
  }
  p.data = int(double(gpus) / model_ranks);
  if (job.training.global_batch_size == 0) {
    const std::int64_t replica =
        run.batch_per_replica > 0 ? run.batch_per_replica : std::int64_t{p.micro_batch_size};
    job.training.global_batch_size = replica * p.data;  // as the frameworks do
  }
  if (run.optimizer_instances > 1) {
    const std::int64_t ranks = std::int64_t{p.data} * p.context;
    if (ranks % run.optimizer_instances != 0) {
      problems.push_back(
          fmt::format("{} data-parallel ranks cannot hold {} copies of the optimizer", ranks,
                      run.optimizer_instances));
    } else {
      p.zero_shard = int(ranks / run.optimizer_instances);
    }
  }
  return job;
}

std::vector<LayoutStage> ParsePipelineLayout(std::string_view layout) {
  // Groups first and then single characters, as Megatron unrolls them.
  constexpr std::size_t kMostCharacters = std::size_t{1} << 20;
  std::string plain;
  const auto fail = [](std::string_view what) -> void { throw ConfigError(std::string(what)); };
  const auto times = [&](std::size_t& at) -> std::size_t {
    if (at >= layout.size() || layout[at] != '*') return 1;
    std::size_t end = at + 1;
    while (end < layout.size() && layout[end] >= '0' && layout[end] <= '9') ++end;
    const auto value = Integer(layout.substr(at + 1, end - at - 1));
    if (!value || *value < 0 || *value > std::int64_t(kMostCharacters)) {
      fail("expected a number behind \"*\"");
    }
    at = end;
    return std::size_t(*value);
  };
  const auto append = [&](std::string_view what, std::size_t count) {
    if (what.size() * count + plain.size() > kMostCharacters) fail("is too long");
    for (std::size_t i = 0; i < count; ++i) plain += what;
  };
  for (std::size_t at = 0; at < layout.size();) {
    const char c = layout[at];
    if (c == ',' || c == ' ') {
      ++at;
    } else if (c == '(') {
      const std::size_t close = layout.find(')', at);
      if (close == std::string_view::npos) fail("a parenthesis is not closed");
      std::string inside;
      for (std::size_t i = at + 1; i < close;) {
        const char one = layout[i++];
        if (one == ',' || one == ' ') continue;
        if (one == '(') fail("parentheses do not nest");
        const std::size_t count = times(i);
        if (inside.size() + count > kMostCharacters) fail("is too long");
        inside.append(count, one);
      }
      at = close + 1;
      append(inside, times(at));
    } else {
      ++at;
      append(std::string_view(&c, 1), times(at));
    }
  }
  std::vector<LayoutStage> stages(1);
  for (const char c : plain) {
    switch (c) {
      case '|':
        if (stages.size() >= kMostLayoutStages) fail("has too many stages");
        stages.emplace_back();
        break;
      case 'E':
        stages.back().embedding = true;
        break;
      case 't':
        ++stages.back().layers;
        break;
      case 'm':
        ++stages.back().mtp_layers;
        break;
      case 'L':
        stages.back().loss = true;
        break;
      default:
        throw ConfigError(fmt::format("expected E, t, m, L and |, got \"{}\"",
                                      Printable(std::string_view(&c, 1), kMostNameShown)));
    }
  }
  if (!stages.front().embedding || !stages.back().loss) {
    fail("begins with the embedding E and ends with the loss L");
  }
  return stages;
}

std::string RefusedExchange(const ModelConfig& model, const ParallelConfig& plan) {
  const int ranks = plan.ulysses_ranks(), heads = KeyValueHeads(model, plan.tensor);
  if (ranks == 1 || heads % ranks == 0) return {};
  return fmt::format(
      "Transformer Engine asserts that KV heads divide by the ranks that exchange them, and {} of "
      "a "
      "tensor rank {} not divide by {}",
      heads, heads == 1 ? "does" : "do", ranks);
}

}  // namespace millwright
