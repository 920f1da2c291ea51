// SPDX-License-Identifier: Apache-2.0
#include "core/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>

#include "core/json_value.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

using Kind = JsonValue::Kind;

// A size under a key.  `absent` is what transformers takes where the key is missing; 0: it must
// be there.
struct Size {
  const char* key;
  std::int64_t absent = 0;
};

// A yes or no: under a key, `absent` where that is missing; without a key always `absent`.
struct Flag {
  const char* key = nullptr;
  bool absent = false;
};

// A dropout probability under a key.
struct Dropout {
  const char* key = nullptr;
  double absent = 0;
};

// Which layers see only a sliding window, where the config does not list layer_types.
enum class Window {
  kNever,
  kEveryLayer,          // where sliding_window is a number
  kFromMaxWindow,       // with use_sliding_window, layers from max_window_layers on (Qwen2, Qwen3)
  kEvenBelowMaxWindow,  // with use_sliding_window, even layers below max_window_layers (Qwen2-MoE)
  kAllWithFlag,         // with use_sliding_window (Qwen3-MoE)
  kEvenLayers,          // layers 0, 2, 4, ...
  kAllButEveryNth,      // layers N-1, 2N-1, ... see everything, N being sliding_window_pattern
};

enum class SharedExperts {
  kNone,
  kGated,    // one MLP of shared_expert_intermediate_size, scaled by a learned gate
  kCounted,  // n_shared_experts of the routed experts' size
};

enum class MoeLayers {
  kEvery,
  kSparseStep,  // each decoder_sparse_step-th, but mlp_only_layers
  kAfterDense,  // from first_k_dense_replace on, each moe_layer_freq-th
};

struct Experts {
  const char* count = nullptr;  // null: a dense architecture
  std::int64_t count_absent = 0;
  Size topk{"num_experts_per_tok", 0};
  Size ffn{"moe_intermediate_size", 0};
  SharedExperts shared = SharedExperts::kNone;
  std::int64_t shared_absent = 0;
  MoeLayers layers = MoeLayers::kEvery;
  std::int64_t first_dense_absent = 0;
  bool router_bias = false;
  Flag normalize_topk{nullptr, true};
  // Node-limited routing: groups and groups per token; and the topk_method where absent.
  std::int64_t groups_absent = 0;
  std::int64_t topk_groups_absent = 0;
  const char* topk_method_absent = nullptr;  // null: the architecture has no such key
};

struct Architecture {
  std::string_view model_type;
  std::string_view also{};  // another model_type of the very same architecture
  Size layers{"num_hidden_layers"};
  Size hidden{"hidden_size"};
  Size heads{"num_attention_heads"};
  Size ffn{"intermediate_size"};
  bool ffn_null_is_4h = false;
  const char* kv_heads = "num_key_value_heads";  // null: as many as heads
  std::int64_t kv_heads_absent = 0;              // 0: as many as heads
  const char* head_dim = "head_dim";             // null: always hidden / heads
  std::int64_t head_dim_absent = 0;              // 0: hidden / heads
  Size vocab{"vocab_size"};
  Size positions{"max_position_embeddings"};
  const char* activation_key = "hidden_act";
  Activation activation_absent = Activation::kSilu;
  bool gated = true;
  Normalization normalization = Normalization::kRmsNorm;
  PositionEmbedding position = PositionEmbedding::kRope;
  bool qk_norm = false;
  bool post_norms = false;
  bool sinks = false;
  Flag parallel_residual{};
  Flag qkv_bias{};
  bool output_bias = true;  // attention's output projection has one where qkv has
  Flag mlp_bias{};
  Flag tied{"tie_word_embeddings", false};
  Dropout attention_dropout{"attention_dropout", 0};
  Dropout hidden_dropout{};
  Window window = Window::kNever;
  std::int64_t window_absent = 0;  // 0: none
  bool latent = false;
  Experts experts{};
};

// Source of each entry: configuration_NAME.py and modeling_NAME.py of the transformers library.
constexpr Architecture kArchitectures[] = {
    {.model_type = "llama",
     .positions = {"max_position_embeddings", 2048},
     .qkv_bias = {"attention_bias", false},
     .mlp_bias = {"mlp_bias", false}},
    {.model_type = "mistral",
     .kv_heads_absent = 8,
     .positions = {"max_position_embeddings", 131072},
     .window = Window::kEveryLayer,
     .window_absent = 4096},
    {.model_type = "mixtral",
     .kv_heads_absent = 8,
     .positions = {"max_position_embeddings", 131072},
     .window = Window::kEveryLayer,
     .experts = {.count = "num_local_experts",
                 .count_absent = 8,
                 .topk = {"num_experts_per_tok", 2},
                 .ffn = {"intermediate_size"}}},
    {.model_type = "qwen2",
     .kv_heads_absent = 32,
     .positions = {"max_position_embeddings", 32768},
     .qkv_bias = {nullptr, true},
     .output_bias = false,
     .window = Window::kFromMaxWindow,
     .window_absent = 4096},
    {.model_type = "qwen2_moe",
     .kv_heads_absent = 16,
     .positions = {"max_position_embeddings", 32768},
     .qkv_bias = {"qkv_bias", true},
     .output_bias = false,
     .window = Window::kEvenBelowMaxWindow,
     .window_absent = 4096,
     .experts = {.count = "num_experts",
                 .count_absent = 60,
                 .topk = {"num_experts_per_tok", 4},
                 .ffn = {"moe_intermediate_size", 1408},
                 .shared = SharedExperts::kGated,
                 .shared_absent = 5632,
                 .layers = MoeLayers::kSparseStep,
                 .normalize_topk = {"norm_topk_prob", false}}},
    {.model_type = "qwen3",
     .kv_heads_absent = 32,
     .head_dim_absent = 128,
     .positions = {"max_position_embeddings", 32768},
     .qk_norm = true,
     .qkv_bias = {"attention_bias", false},
     .window = Window::kFromMaxWindow,
     .window_absent = 4096},
    {.model_type = "qwen3_moe",
     .kv_heads_absent = 4,
     .positions = {"max_position_embeddings", 32768},
     .qk_norm = true,
     .qkv_bias = {"attention_bias", false},
     .window = Window::kAllWithFlag,
     .window_absent = 4096,
     .experts = {.count = "num_experts",
                 .count_absent = 128,
                 .topk = {"num_experts_per_tok", 8},
                 .ffn = {"moe_intermediate_size", 768},
                 .layers = MoeLayers::kSparseStep,
                 .normalize_topk = {"norm_topk_prob", false}}},
    {.model_type = "deepseek_v2",
     .kv_heads = nullptr,
     .head_dim = nullptr,
     .positions = {"max_position_embeddings", 2048},
     .qkv_bias = {"attention_bias", false},
     .latent = true,
     .experts = {.count = "n_routed_experts",
                 .count_absent = 64,
                 .ffn = {"moe_intermediate_size", 1407},
                 .shared = SharedExperts::kCounted,
                 .shared_absent = 2,
                 .layers = MoeLayers::kAfterDense,
                 .normalize_topk = {"norm_topk_prob", false},
                 .topk_method_absent = "greedy"}},
    {.model_type = "deepseek_v3",
     .also = "kimi_k2",
     .kv_heads = nullptr,
     .head_dim = nullptr,
     .positions = {"max_position_embeddings", 4096},
     .qkv_bias = {"attention_bias", false},
     .latent = true,
     .experts = {.count = "n_routed_experts",
                 .count_absent = 256,
                 .topk = {"num_experts_per_tok", 8},
                 .ffn = {"moe_intermediate_size", 2048},
                 .shared = SharedExperts::kCounted,
                 .shared_absent = 1,
                 .layers = MoeLayers::kAfterDense,
                 .first_dense_absent = 3,
                 .normalize_topk = {"norm_topk_prob", true},
                 .groups_absent = 8,
                 .topk_groups_absent = 4,
                 .topk_method_absent = "noaux_tc"}},
    {.model_type = "gpt_oss",
     .kv_heads_absent = 8,
     .head_dim_absent = 64,
     .positions = {"max_position_embeddings", 131072},
     .sinks = true,
     .qkv_bias = {"attention_bias", true},
     .mlp_bias = {nullptr, true},
     .window = Window::kEvenLayers,
     .window_absent = 128,
     .experts = {.count = "num_local_experts",
                 .count_absent = 128,
                 .topk = {"num_experts_per_tok", 4},
                 .ffn = {"intermediate_size"},
                 .router_bias = true}},
    {.model_type = "gpt2",
     .layers = {"n_layer", 12},
     .hidden = {"n_embd", 768},
     .heads = {"n_head", 12},
     .ffn = {"n_inner"},
     .ffn_null_is_4h = true,
     .kv_heads = nullptr,
     .head_dim = nullptr,
     .vocab = {"vocab_size", 50257},
     .positions = {"n_positions", 1024},
     .activation_key = "activation_function",
     .activation_absent = Activation::kGelu,
     .gated = false,
     .normalization = Normalization::kLayerNorm,
     .position = PositionEmbedding::kLearned,
     .qkv_bias = {nullptr, true},
     .mlp_bias = {nullptr, true},
     .tied = {"tie_word_embeddings", true},
     .attention_dropout = {"attn_pdrop", 0.1},
     .hidden_dropout = {"resid_pdrop", 0.1}},
    {.model_type = "gpt_neox",
     .kv_heads = nullptr,
     .head_dim = nullptr,
     .positions = {"max_position_embeddings", 2048},
     .activation_absent = Activation::kGelu,
     .gated = false,
     .normalization = Normalization::kLayerNorm,
     .parallel_residual = {"use_parallel_residual", true},
     .qkv_bias = {"attention_bias", true},
     .mlp_bias = {nullptr, true},
     .hidden_dropout = {"hidden_dropout", 0}},
    {.model_type = "gemma",
     .kv_heads_absent = 16,
     .head_dim_absent = 256,
     .positions = {"max_position_embeddings", 8192},
     .activation_key = "hidden_activation",
     .activation_absent = Activation::kGelu,
     .qkv_bias = {"attention_bias", false},
     .tied = {"tie_word_embeddings", true}},
    {.model_type = "gemma2",
     .kv_heads_absent = 4,
     .head_dim_absent = 256,
     .positions = {"max_position_embeddings", 8192},
     .activation_key = "hidden_activation",
     .activation_absent = Activation::kGelu,
     .post_norms = true,
     .qkv_bias = {"attention_bias", false},
     .tied = {"tie_word_embeddings", true},
     .window = Window::kEvenLayers,
     .window_absent = 4096},
    // Published files leave out what equals the class's default, so all sizes have one.
    {.model_type = "gemma3_text",
     .layers = {"num_hidden_layers", 26},
     .hidden = {"hidden_size", 2304},
     .heads = {"num_attention_heads", 8},
     .ffn = {"intermediate_size", 9216},
     .kv_heads_absent = 4,
     .head_dim_absent = 256,
     .vocab = {"vocab_size", 262208},
     .positions = {"max_position_embeddings", 131072},
     .activation_key = "hidden_activation",
     .activation_absent = Activation::kGelu,
     .qk_norm = true,
     .post_norms = true,
     .qkv_bias = {"attention_bias", false},
     .tied = {"tie_word_embeddings", true},
     .window = Window::kAllButEveryNth,
     .window_absent = 4096},
    {.model_type = "phi3",
     .head_dim = nullptr,
     .positions = {"max_position_embeddings", 4096},
     .hidden_dropout = {"resid_pdrop", 0},
     .window = Window::kEveryLayer},
};

// Wrappers around a text model, and the text model's type where its own part does not say.
struct Wrapper {
  std::string_view model_type;
  std::string_view text_type;
};
constexpr Wrapper kWrappers[] = {{"gemma3", "gemma3_text"}, {"mistral3", "mistral"}};

// Kinds that are known and cannot be modelled, and what is missing.
struct Refusal {
  std::string_view model_type;
  std::string_view what;
};
constexpr std::string_view kStateSpace = "state-space layers are not modelled";
constexpr std::string_view kLinear = "linear-attention layers are not modelled";
constexpr std::string_view kRecurrent = "recurrent layers are not modelled";
constexpr std::string_view kEncoder = "encoder-only models are not modelled";
constexpr std::string_view kTwoStacks = "encoder-decoder models are not modelled";
constexpr Refusal kRefusals[] = {
    {"nemotron_h", kStateSpace},
    {"mamba", kStateSpace},
    {"mamba2", kStateSpace},
    {"falcon_mamba", kStateSpace},
    {"falcon_h1", kStateSpace},
    {"jamba", kStateSpace},
    {"zamba", kStateSpace},
    {"zamba2", kStateSpace},
    {"bamba", kStateSpace},
    {"granitemoehybrid", kStateSpace},
    {"codestral_mamba", kStateSpace},
    {"qwen3_next", kLinear},
    {"minimax", kLinear},
    {"kimi_linear", kLinear},
    {"rwkv", kRecurrent},
    {"recurrent_gemma", kRecurrent},
    {"xlstm", kRecurrent},
    {"bert", kEncoder},
    {"roberta", kEncoder},
    {"distilbert", kEncoder},
    {"albert", kEncoder},
    {"electra", kEncoder},
    {"deberta", kEncoder},
    {"deberta-v2", kEncoder},
    {"modernbert", kEncoder},
    {"xlm-roberta", kEncoder},
    {"t5", kTwoStacks},
    {"mt5", kTwoStacks},
    {"umt5", kTwoStacks},
    {"bart", kTwoStacks},
    {"mbart", kTwoStacks},
    {"pegasus", kTwoStacks},
    {"marian", kTwoStacks},
    {"m2m_100", kTwoStacks},
    {"whisper", kTwoStacks},
};

constexpr EnumName<Activation> kActivations[] = {
    {Activation::kSilu, "silu"},         {Activation::kSilu, "swish"},
    {Activation::kGelu, "gelu"},         {Activation::kGelu, "gelu_new"},
    {Activation::kGelu, "gelu_fast"},    {Activation::kGelu, "gelu_pytorch_tanh"},
    {Activation::kGelu, "quick_gelu"},   {Activation::kRelu, "relu"},
    {Activation::kSquaredRelu, "relu2"},
};

std::string Modelled() { return fmt::format("Modelled: {}", fmt::join(HfArchitectures(), ", ")); }

// One object of the file.  Every getter notes its key as used and reports what is wrong with it;
// null counts as absent unless the getter says otherwise.
class Reader {
 public:
  Reader(const JsonValue& object, std::string pointer, Mistakes& mistakes)
      : object_(object), pointer_(std::move(pointer)), mistakes_(mistakes) {}

  const JsonValue* Find(const char* key) {
    const bool first = std::find(used_.begin(), used_.end(), key) == used_.end();
    used_.emplace_back(key);
    // Python takes the last of two equal keys and says nothing; here they would decide the answer.
    const auto times = std::count_if(object_.members.begin(), object_.members.end(),
                                     [&](const JsonMember& member) { return member.key == key; });
    if (first && times > 1) Wrong(key, fmt::format("duplicate field, given {} times", times));
    const JsonValue* value = object_.find(key);
    return value == nullptr || value->kind == Kind::kNull ? nullptr : value;
  }
  bool IsNull(const char* key) const {
    const JsonValue* value = object_.find(key);
    return value != nullptr && value->kind == Kind::kNull;
  }
  void Wrong(const char* key, std::string_view what) {
    mistakes_.Add(PointerTo(pointer_, key), what);
  }
  void WrongItem(const char* key, std::size_t index, std::string_view what) {
    mistakes_.Add(PointerTo(PointerTo(pointer_, key), std::to_string(index)), what);
  }

  std::int64_t Integer(const char* key, std::int64_t least, std::int64_t most,
                       std::int64_t absent) {
    const JsonValue* value = Find(key);
    if (value == nullptr) return absent;
    if (value->kind == Kind::kInteger && value->integer >= least && value->integer <= most)
      return value->integer;
    Wrong(key,
          fmt::format("expected an integer from {} to {}, got {}", least, most, Quote(*value)));
    return absent;
  }
  std::int64_t Required(Size size, std::int64_t most) {
    if (size.absent == 0 && Find(size.key) == nullptr) {
      Wrong(size.key, fmt::format("expected an integer from 1 to {}, got {}", most,
                                  IsNull(size.key) ? "null" : "nothing (this key is required)"));
      return 0;
    }
    return Integer(size.key, 1, most, size.absent);
  }
  bool Boolean(Flag flag) {
    if (flag.key == nullptr) return flag.absent;
    const JsonValue* value = Find(flag.key);
    if (value == nullptr) return flag.absent;
    if (value->kind == Kind::kBool) return value->boolean;
    Wrong(flag.key, fmt::format("expected true or false, got {}", Quote(*value)));
    return flag.absent;
  }
  bool Drops(Dropout dropout) {
    if (dropout.key == nullptr) return dropout.absent > 0;
    const JsonValue* value = Find(dropout.key);
    if (value == nullptr) return dropout.absent > 0;
    const bool number = value->kind == Kind::kInteger || value->kind == Kind::kNumber;
    if (number && value->number >= 0 && value->number <= 1) return value->number > 0;
    Wrong(dropout.key, fmt::format("expected a probability from 0 to 1, got {}", Quote(*value)));
    return false;
  }
  Activation ActivationOf(const char* key, Activation absent) {
    const JsonValue* value = Find(key);
    if (value == nullptr) return absent;
    std::vector<std::string_view> names;
    for (const auto& a : kActivations) {
      if (value->kind == Kind::kText && value->text == a.name) return a.value;
      names.push_back(a.name);
    }
    Wrong(key,
          fmt::format("expected one of \"{}\", got {}", fmt::join(names, "\", \""), Quote(*value)));
    return absent;
  }

  const std::vector<std::string>& used() const { return used_; }
  const JsonValue& object() const { return object_; }
  const std::string& pointer() const { return pointer_; }

 private:
  const JsonValue& object_;
  std::string pointer_;
  Mistakes& mistakes_;
  std::vector<std::string> used_;
};

// Every layer's window, one by one, before equal neighbours are joined.
std::vector<std::int64_t> Windows(Reader& in, const Architecture& a, int layers) {
  std::vector<std::int64_t> windows(static_cast<std::size_t>(layers), 0);
  if (a.window == Window::kNever) return windows;

  const bool by_flag = a.window == Window::kFromMaxWindow || a.window == Window::kAllWithFlag ||
                       a.window == Window::kEvenBelowMaxWindow;
  const bool allowed = !by_flag || in.Boolean({"use_sliding_window", false});
  const std::int64_t width = in.Integer("sliding_window", 0, kMostPositions,
                                        in.IsNull("sliding_window") ? 0 : a.window_absent);
  const std::int64_t max_window_layers =
      by_flag && a.window != Window::kAllWithFlag
          ? in.Integer("max_window_layers", 0, kMostPositions, 28)
          : 0;
  // Later versions of transformers write the pattern with an underscore in front.
  std::int64_t pattern = 6;
  if (a.window == Window::kAllButEveryNth) {
    pattern = in.Integer("_sliding_window_pattern", 1, kMostLayers, pattern);
    pattern = in.Integer("sliding_window_pattern", 1, kMostLayers, pattern);
  }

  if (const JsonValue* types = in.Find("layer_types"); types != nullptr) {
    if (types->kind != Kind::kArray || types->items.size() != windows.size()) {
      in.Wrong(
          "layer_types",
          types->kind == Kind::kArray
              ? fmt::format("expected a list of {} layer types, one a layer, got {}", layers,
                            types->items.size())
              : fmt::format("expected a list of {} layer types, got {}", layers, Quote(*types)));
      return windows;
    }
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const JsonValue& type = types->items[i];
      const bool sliding = type.kind == Kind::kText && type.text == "sliding_attention";
      if (!sliding && !(type.kind == Kind::kText && type.text == "full_attention")) {
        in.WrongItem("layer_types", i,
                     fmt::format("expected \"full_attention\" or \"sliding_attention\", got {}",
                                 Quote(type)));
      }
      if (sliding && width == 0 && allowed) {
        in.Wrong("sliding_window", "layer_types has sliding layers, but there is no window");
        return windows;
      }
      if (sliding && allowed) windows[i] = width;
    }
    return windows;
  }
  if (!allowed) return windows;
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool slides = [&] {
      switch (a.window) {
        case Window::kNever:
          return false;
        case Window::kEveryLayer:
        case Window::kAllWithFlag:
          return true;
        case Window::kFromMaxWindow:
          return i >= max_window_layers;
        case Window::kEvenBelowMaxWindow:
          return i % 2 == 0 && i < max_window_layers;
        case Window::kEvenLayers:
          return i % 2 == 0;
        case Window::kAllButEveryNth:
          return (i + 1) % pattern != 0;
      }
      return false;
    }();
    if (slides) windows[static_cast<std::size_t>(i)] = width;
  }
  return windows;
}

std::vector<bool> MoeFlags(Reader& in, const Experts& e, int layers) {
  std::vector<bool> moe(static_cast<std::size_t>(layers), true);
  switch (e.layers) {
    case MoeLayers::kEvery:
      break;
    case MoeLayers::kSparseStep: {
      const std::int64_t step = in.Integer("decoder_sparse_step", 1, kMostLayers, 1);
      for (std::size_t i = 0; i < moe.size(); ++i)
        moe[i] = (static_cast<std::int64_t>(i) + 1) % step == 0;
      const JsonValue* dense = in.Find("mlp_only_layers");
      if (dense == nullptr) break;
      if (dense->kind != Kind::kArray) {
        in.Wrong("mlp_only_layers",
                 fmt::format("expected a list of layer numbers, got {}", Quote(*dense)));
        break;
      }
      for (std::size_t i = 0; i < dense->items.size(); ++i) {
        const JsonValue& item = dense->items[i];
        if (item.kind == Kind::kInteger && item.integer >= 0 && item.integer < layers) {
          moe[static_cast<std::size_t>(item.integer)] = false;
        } else {
          in.WrongItem(
              "mlp_only_layers", i,
              fmt::format("expected a layer from 0 to {}, got {}", layers - 1, Quote(item)));
        }
      }
      break;
    }
    case MoeLayers::kAfterDense: {
      const std::int64_t first =
          in.Integer("first_k_dense_replace", 0, kMostLayers, e.first_dense_absent);
      const std::int64_t every = in.Integer("moe_layer_freq", 1, kMostLayers, 1);
      for (std::size_t i = 0; i < moe.size(); ++i) {
        const auto layer = static_cast<std::int64_t>(i);
        moe[i] = layer >= first && layer % every == 0;
      }
      break;
    }
  }
  return moe;
}

MixtureOfExperts ReadExperts(Reader& in, const Experts& e) {
  MixtureOfExperts moe;
  // An explicit null makes the architecture dense.
  const std::int64_t absent = in.IsNull(e.count) ? 0 : e.count_absent;
  moe.num_experts = static_cast<int>(in.Integer(e.count, 1, kMostExperts, absent));
  if (moe.num_experts == 0) return {};
  moe.topk = static_cast<int>(in.Required(e.topk, kMostExperts));
  moe.ffn_hidden_size = in.Required(e.ffn, kMostFfn);
  moe.router_bias = e.router_bias;
  moe.normalize_topk = in.Boolean(e.normalize_topk);
  switch (e.shared) {
    case SharedExperts::kNone:
      break;
    case SharedExperts::kGated:
      moe.shared_expert_ffn_hidden_size =
          in.Integer("shared_expert_intermediate_size", 0, kMostFfn, e.shared_absent);
      moe.shared_expert_gate = moe.shared_expert_ffn_hidden_size > 0;
      break;
    case SharedExperts::kCounted: {
      const std::int64_t none_if_null = in.IsNull("n_shared_experts") ? 0 : e.shared_absent;
      const std::int64_t count = in.Integer("n_shared_experts", 0, kMostExperts, none_if_null);
      moe.shared_expert_ffn_hidden_size = count * moe.ffn_hidden_size;
      if (moe.shared_expert_ffn_hidden_size > kMostFfn) {
        in.Wrong("n_shared_experts",
                 fmt::format("{} shared experts of width {} are wider than {} together", count,
                             moe.ffn_hidden_size, kMostFfn));
        moe.shared_expert_ffn_hidden_size = 0;
      }
      break;
    }
  }
  if (e.topk_method_absent != nullptr) {
    std::string method = e.topk_method_absent;
    if (const JsonValue* value = in.Find("topk_method"); value != nullptr) {
      method = value->text;
      if (value->kind != Kind::kText ||
          (method != "greedy" && method != "gready" &&  // the spelling of early DeepSeek-V2 files
           method != "group_limited_greedy" && method != "noaux_tc")) {
        in.Wrong("topk_method",
                 fmt::format("expected one of \"greedy\", \"group_limited_greedy\", \"noaux_tc\", "
                             "got {}",
                             Quote(*value)));
      }
    }
    moe.router_correction_bias = method == "noaux_tc";
    const auto groups = in.Integer("n_group", 1, kMostExperts, e.groups_absent);
    const auto topk_groups = in.Integer("topk_group", 1, kMostExperts, e.topk_groups_absent);
    if ((method == "group_limited_greedy" || method == "noaux_tc") && groups > 1) {
      moe.num_groups = static_cast<int>(groups);
      moe.topk_groups = static_cast<int>(topk_groups);
    }
  }
  return moe;
}

LatentAttention ReadLatent(Reader& in) {
  LatentAttention mla;
  // null: queries are not compressed.
  mla.q_lora_rank = in.Integer("q_lora_rank", 1, kMostHidden, in.IsNull("q_lora_rank") ? 0 : 1536);
  mla.kv_lora_rank = in.Required({"kv_lora_rank", 512}, kMostHidden);
  mla.qk_nope_head_dim = in.Required({"qk_nope_head_dim", 128}, kMostHeadSize);
  mla.qk_rope_head_dim = in.Required({"qk_rope_head_dim", 64}, kMostHeadSize);
  mla.v_head_dim = in.Required({"v_head_dim", 128}, kMostHeadSize);
  return mla;
}

// The file's key for a field that an inconsistency names.
const char* KeyOf(const Architecture& a, std::string_view field) {
  if (field == "hidden_size") return a.hidden.key;
  if (field == "num_attention_heads") return a.heads.key;
  if (field == "num_query_groups") return a.kv_heads != nullptr ? a.kv_heads : a.heads.key;
  if (field == "kv_channels") return a.head_dim != nullptr ? a.head_dim : a.heads.key;
  if (field == "ffn_hidden_size") return a.ffn.key;
  if (field == "vocab_size") return a.vocab.key;
  if (field == "max_position_embeddings") return a.positions.key;
  if (field == "moe" && a.experts.count != nullptr) return a.experts.count;
  return a.layers.key;
}

ModelConfig ReadArchitecture(Reader& in, const Architecture& a, Mistakes& mistakes) {
  const std::size_t before = mistakes.count();
  ModelConfig m;
  m.architecture = a.model_type;
  m.num_layers = static_cast<int>(in.Required(a.layers, kMostLayers));
  m.hidden_size = in.Required(a.hidden, kMostHidden);
  m.num_attention_heads = static_cast<int>(in.Required(a.heads, kMostHeads));
  m.vocab_size = in.Required(a.vocab, kMostVocabulary);
  m.max_position_embeddings = in.Required(a.positions, kMostPositions);
  m.ffn_hidden_size = a.ffn_null_is_4h ? in.Integer(a.ffn.key, 1, kMostFfn, 4 * m.hidden_size)
                                       : in.Required(a.ffn, kMostFfn);
  m.num_query_groups = m.num_attention_heads;
  if (a.kv_heads != nullptr) {
    const bool as_heads = a.kv_heads_absent == 0 || in.IsNull(a.kv_heads);
    m.num_query_groups = static_cast<int>(in.Integer(
        a.kv_heads, 1, kMostHeads, as_heads ? m.num_attention_heads : a.kv_heads_absent));
  }
  if (a.head_dim != nullptr) {
    m.kv_channels =
        in.Integer(a.head_dim, 1, kMostHeadSize, in.IsNull(a.head_dim) ? 0 : a.head_dim_absent);
  }
  if (m.kv_channels == 0 && !a.latent && m.num_attention_heads > 0) {
    m.kv_channels = m.hidden_size / m.num_attention_heads;
    if (m.hidden_size % m.num_attention_heads != 0) {
      in.Wrong(a.hidden.key, fmt::format("{} is not a multiple of {} {}", m.hidden_size,
                                         a.heads.key, m.num_attention_heads));
    }
  }
  m.gated_linear_unit = a.gated;
  m.activation = in.ActivationOf(a.activation_key, a.activation_absent);
  m.normalization = a.normalization;
  m.post_layer_norms = a.post_norms;
  m.qk_layernorm = a.qk_norm;
  m.position_embedding = a.position;
  m.parallel_residual = in.Boolean(a.parallel_residual);
  m.add_qkv_bias = in.Boolean(a.qkv_bias);
  m.add_attention_output_bias = m.add_qkv_bias && a.output_bias;
  m.add_mlp_bias = in.Boolean(a.mlp_bias);
  m.attention_sinks = a.sinks;
  m.tied_embeddings = in.Boolean(a.tied);
  m.attention_dropout = in.Drops(a.attention_dropout);
  m.hidden_dropout = in.Drops(a.hidden_dropout);
  m.latent = a.latent;
  if (a.latent) m.mla = ReadLatent(in);
  if (a.latent)
    m.mtp_num_layers = static_cast<int>(in.Integer("num_nextn_predict_layers", 0, kMostLayers, 0));
  if (m.num_layers == 0) return m;  // a mistake already; what is listed by layer cannot be judged
  std::vector<bool> moe(static_cast<std::size_t>(m.num_layers), false);
  if (a.experts.count != nullptr) {
    m.moe = ReadExperts(in, a.experts);
    if (m.moe.num_experts > 0) moe = MoeFlags(in, a.experts, m.num_layers);
    if (std::find(moe.begin(), moe.end(), true) == moe.end()) m.moe = {};
  }
  const std::vector<std::int64_t> windows = Windows(in, a, m.num_layers);
  for (std::size_t i = 0; i < moe.size(); ++i) {
    const LayerKind kind{.moe = moe[i], .sliding_window = windows[i]};
    if (m.layers.empty() || m.layers.back().kind != kind) m.layers.push_back({0, kind});
    ++m.layers.back().count;
  }
  if (mistakes.count() > before) return m;
  FillDefaults(m);
  for (const Inconsistency& found : Inconsistencies(m)) in.Wrong(KeyOf(a, found.field), found.what);
  return m;
}

const Architecture* FindArchitecture(std::string_view model_type) {
  for (const Architecture& a : kArchitectures)
    if (a.model_type == model_type || (!a.also.empty() && a.also == model_type)) return &a;
  return nullptr;
}

std::string RefusalText(const JsonValue& object, const std::string& model_type) {
  // Nemotron-H spells its layers out: M is Mamba-2, * attention, - MLP.
  if (const JsonValue* pattern = object.find("hybrid_override_pattern");
      model_type == "nemotron_h" && pattern != nullptr && pattern->kind == Kind::kText) {
    const auto mamba = std::count(pattern->text.begin(), pattern->text.end(), 'M');
    return fmt::format(
        "\"nemotron_h\" is a Mamba-2 hybrid (hybrid_override_pattern has {} Mamba layers); {}. {}",
        mamba, kStateSpace, Modelled());
  }
  for (const Refusal& r : kRefusals)
    if (r.model_type == model_type)
      return fmt::format("\"{}\" cannot be modelled: {}. {}", model_type, r.what, Modelled());
  const std::vector<std::string_view> known = HfArchitectures();
  const std::string_view near = NearestName(model_type, known);
  return fmt::format("{} is not an architecture that is modelled{} {}",
                     Printable(JsonText(model_type), 60),
                     near.empty() ? "." : fmt::format("; did you mean \"{}\"?", near), Modelled());
}

std::string ModelName(const std::string& file) {
  const std::filesystem::path path(file);
  const std::string folder = path.parent_path().filename().string();
  const bool by_folder = path.filename() == "config.json" && !folder.empty();
  return Printable(by_folder ? folder : path.stem().string(), kMostNameShown);
}

}  // namespace

std::vector<std::string_view> HfArchitectures() {
  std::vector<std::string_view> names;
  for (const Architecture& a : kArchitectures) {
    names.push_back(a.model_type);
    if (!a.also.empty()) names.push_back(a.also);
  }
  return names;
}

ModelConfig ReadHfConfig(const std::string& file, std::string_view text,
                         std::vector<std::string>* ignored_keys) {
  Mistakes mistakes(file);
  Mistakes repeated(file);  // what matters of them is found again below
  const JsonValue root = ParseJson(file, text, repeated);
  if (root.kind != Kind::kObject) {
    mistakes.Add("", fmt::format("expected an object, got {}", Quote(root)));
    mistakes.ThrowIfAny();
  }
  const JsonValue* object = &root;
  std::string pointer;
  const auto type_of = [&](const JsonValue& o) -> std::string {
    const JsonValue* type = o.find("model_type");
    return type != nullptr && type->kind == Kind::kText ? type->text : "";
  };
  std::string model_type = type_of(root);
  const JsonValue* inner = root.find("text_config");
  const bool wrapped =
      FindArchitecture(model_type) == nullptr && inner != nullptr && inner->kind == Kind::kObject;
  if (wrapped) {
    Reader(root, pointer, mistakes).Find("text_config");
    object = inner;
    pointer = "/text_config";
    std::string text_type = type_of(*inner);
    for (const Wrapper& w : kWrappers)
      if (text_type.empty() && w.model_type == model_type) text_type = w.text_type;
    model_type = text_type;
  }
  const std::string type_pointer = pointer + "/model_type";
  const JsonValue* written = object->find("model_type");
  if (model_type.empty()) {
    mistakes.Add(
        type_pointer,
        fmt::format("expected a text that names the architecture, got {}. {}",
                    written == nullptr ? "nothing (this key is required)" : Quote(*written),
                    Modelled()));
    mistakes.ThrowIfAny();
  }
  const Architecture* architecture = FindArchitecture(model_type);
  if (architecture == nullptr) {
    mistakes.Add(type_pointer, RefusalText(*object, model_type));
    mistakes.ThrowIfAny();
  }

  Reader in(*object, pointer, mistakes);
  in.Find("model_type");
  ModelConfig model = ReadArchitecture(in, *architecture, mistakes);
  mistakes.ThrowIfAny();
  model.name = ModelName(file);

  if (ignored_keys != nullptr) {
    const auto add_ignored = [&](const JsonValue& o, const std::string& at,
                                 const std::vector<std::string>& used) {
      for (const JsonMember& member : o.members)
        if (std::find(used.begin(), used.end(), member.key) == used.end())
          ignored_keys->push_back(PointerTo(at, member.key));
    };
    if (wrapped) add_ignored(root, "", {"model_type", "text_config"});
    add_ignored(*object, pointer, in.used());
  }
  return model;
}

}  // namespace millwright
