// SPDX-License-Identifier: Apache-2.0
#include "validate/published_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>

#include "core/config_io.h"
#include "core/json_value.h"
#include "core/mistakes.h"
#include "core/model.h"
#include "topologies/cluster_config.h"

namespace millwright {
namespace {

using Kind = JsonValue::Kind;

constexpr std::size_t kMostWarnings = 20;
constexpr double kMostStepSeconds = 1e6;
constexpr double kMostMemoryGigabytes = 1e4;  // a GPU's: catches bytes given where GB are due
constexpr double kLeastMemoryGigabytes = 0.01;

// One object of the file: reads the keys asked for, and afterwards looks at the others.
class RunObject {
 public:
  RunObject(const JsonValue& value, std::string pointer, Mistakes& mistakes)
      : value_(value), pointer_(std::move(pointer)), mistakes_(mistakes) {}

  const std::string& pointer() const { return pointer_; }

  void Expected(std::string_view key, std::string_view accepted, const JsonValue& got) {
    if (mistakes_.full()) {
      mistakes_.Add("", "");
      return;
    }
    mistakes_.Add(PointerTo(pointer_, key),
                  fmt::format("expected {}, got {}", accepted, Quote(got)));
  }

  // Null where the key is absent or null.
  const JsonValue* Find(std::string_view key) {
    asked_.push_back(key);
    const JsonValue* found = value_.find(key);
    return found == nullptr || found->kind == Kind::kNull ? nullptr : found;
  }

  void Text(std::string_view key, std::string& out) {
    const JsonValue* found = Find(key);
    if (found == nullptr) return;
    if (found->kind != Kind::kText) {
      Expected(key, "a text", *found);
    } else {
      constexpr std::size_t kMostText = 4000;
      out = Printable(found->text, kMostText);
    }
  }

  void OneOf(std::string_view key, std::string& out, std::span<const std::string_view> names) {
    const JsonValue* found = Find(key);
    if (found == nullptr) return;
    if (found->kind == Kind::kText && std::ranges::find(names, found->text) != names.end()) {
      out = found->text;
      return;
    }
    std::string list;
    for (std::string_view name : names) {
      list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", name);
    }
    Expected(key, "one of " + list, *found);
  }

  void Bool(std::string_view key, std::optional<bool>& out) {
    const JsonValue* found = Find(key);
    if (found == nullptr) return;
    if (found->kind != Kind::kBool) {
      Expected(key, "true or false", *found);
    } else {
      out = found->boolean;
    }
  }

  void Int(std::string_view key, std::optional<std::int64_t>& out, IntRange range) {
    const JsonValue* found = Find(key);
    if (found == nullptr) return;
    if (found->kind != Kind::kInteger || found->integer < range.min || found->integer > range.max) {
      Expected(key, fmt::format("an integer from {} to {}", range.min, range.max), *found);
    } else {
      out = found->integer;
    }
  }

  void Number(std::string_view key, std::optional<double>& out, double more_than, double most) {
    const JsonValue* found = Find(key);
    if (found == nullptr) return;
    const bool number = found->kind == Kind::kInteger || found->kind == Kind::kNumber;
    if (!number || !(found->number > more_than) || !(found->number <= most)) {
      Expected(key, fmt::format("a number above {}, at most {}", more_than, most), *found);
    } else {
      out = found->number;
    }
  }

  // The object at `key`, or null; something else there is a mistake.
  const JsonValue* Object(std::string_view key) {
    const JsonValue* found = Find(key);
    if (found == nullptr) return nullptr;
    if (found->kind == Kind::kObject) return found;
    Expected(key, "an object", *found);
    return nullptr;
  }

  // Keys that are not read but nearly spelt as one that is, and is absent.
  void WarnOfSlips(const std::string& file, std::set<std::string>& warned) {
    for (const JsonMember& member : value_.members) {
      if (std::ranges::find(asked_, member.key) != asked_.end()) continue;
      std::vector<std::string_view> absent;
      for (std::string_view key : asked_) {
        if (value_.find(key) == nullptr) absent.push_back(key);
      }
      const std::string_view nearest = NearestName(member.key, absent);
      if (nearest.empty() || warned.size() >= kMostWarnings) continue;
      warned.insert(fmt::format("{}: at {}: this key is not read; did you mean \"{}\"?", file,
                                PointerTo(pointer_, member.key), nearest));
    }
  }

 private:
  const JsonValue& value_;
  std::string pointer_;
  Mistakes& mistakes_;
  std::vector<std::string_view> asked_;
};

constexpr IntRange kDegree{.min = 1, .max = 1 << 20};
constexpr std::int64_t kMostSequences = std::int64_t{1} << 30;

class RunsReader {
 public:
  explicit RunsReader(const std::string& file) : file_(file), mistakes_(file) {}

  PublishedRuns Read(std::string_view text) {
    const JsonValue root = ParseJson(file_, text, mistakes_);
    if (root.kind != Kind::kArray) {
      mistakes_.Add("", fmt::format("expected an array of runs, got {}", Quote(root)));
    }
    PublishedRuns out;
    std::set<std::string> ids;
    for (std::size_t i = 0; i < root.items.size(); ++i) {
      const std::string pointer = PointerTo("", std::to_string(i));
      if (root.items[i].kind != Kind::kObject) {
        mistakes_.Add(pointer, fmt::format("expected a run, got {}", Quote(root.items[i])));
        continue;
      }
      PublishedRun run = ReadRun(root.items[i], pointer);
      run.index = i;
      if (run.id.empty()) run.id = fmt::format("run-{}", i);
      if (!ids.insert(run.id).second) {
        mistakes_.Add(PointerTo(pointer, "id"),
                      fmt::format("expected an id of its own, got {}, which an earlier run has",
                                  JsonText(Printable(run.id, kMostNameShown))));
      }
      out.runs.push_back(std::move(run));
    }
    mistakes_.ThrowIfAny();
    out.warnings.assign(warned_.begin(), warned_.end());
    return out;
  }

 private:
  PublishedRun ReadRun(const JsonValue& value, const std::string& pointer) {
    PublishedRun run;
    RunObject o(value, pointer, mistakes_);
    o.Text("id", run.id);
    o.Text("source", run.source);
    o.Text("source_detail", run.source_detail);
    if (const JsonValue* model = o.Object("model")) ReadModel(*model, pointer, run.model);
    o.Text("gpu", run.gpu);
    o.Int("gpus_per_node", run.gpus_per_node, {.min = 1, .max = kMaxGpusPerNode});
    o.Int("num_gpus", run.num_gpus, {.min = 1, .max = kMaxGpus});
    o.Text("interconnect", run.interconnect);
    o.Text("precision", run.precision);
    o.Int("tp", run.tp, kDegree);
    o.Bool("sp", run.sp);
    o.Int("pp", run.pp, kDegree);
    o.Int("vpp", run.vpp, kDegree);
    o.Int("cp", run.cp, kDegree);
    o.Int("ep", run.ep, kDegree);
    o.Int("etp", run.etp, kDegree);
    o.Int("dp", run.dp, kDegree);
    o.Int("zero", run.zero, {.min = 0, .max = 3});
    o.Bool("fsdp", run.fsdp);
    o.Bool("hsdp", run.hsdp);
    o.Int("mbs", run.mbs, kDegree);
    o.Int("gbs", run.gbs, {.min = 1, .max = kMostSequences});
    o.Text("recompute", run.recompute);
    o.Text("framework", run.framework);
    o.Bool("flash_attention", run.flash_attention);
    if (const JsonValue* measured = o.Object("measured")) ReadMeasured(*measured, pointer, run);
    o.Text("outcome", run.outcome);
    if (run.outcome.starts_with("oom")) run.outcome.replace(0, 3, "OOM");
    if (!run.outcome.empty() && run.outcome != "ran" && !run.out_of_memory()) {
      WarnOfWord(o, "outcome", run.outcome, "taken as ran", "neither ran nor OOM");
    }
    o.Text("notes", run.notes);
    if (const JsonValue* traits = o.Object("traits")) ReadTraits(*traits, pointer, run.traits);
    o.WarnOfSlips(file_, warned_);
    return run;
  }

  void ReadModel(const JsonValue& value, const std::string& pointer, RunModel& m) {
    RunObject o(value, PointerTo(pointer, "model"), mistakes_);
    o.Text("name", m.name);
    o.Int("layers", m.layers, {.min = 1, .max = kMostLayers});
    o.Int("hidden", m.hidden, {.min = 1, .max = kMostHidden});
    o.Int("heads", m.heads, {.min = 1, .max = kMostHeads});
    o.Int("kv_heads", m.kv_heads, {.min = 1, .max = kMostHeads});
    o.Int("head_dim", m.head_dim, {.min = 1, .max = kMostHeadSize});
    o.Int("ffn", m.ffn, {.min = 1, .max = kMostFfn});
    o.Bool("gated", m.gated);
    o.Int("vocab", m.vocab, {.min = 1, .max = kMostVocabulary});
    o.Int("seq", m.seq, {.min = 1, .max = kMostPositions});
    o.Bool("tied_embeddings", m.tied_embeddings);
    o.Text("attn", m.attn);
    o.Text("pos_emb", m.pos_emb);
    o.Text("hybrid", m.hybrid);
    m.mamba = o.Object("mamba") != nullptr;
    o.Int("mtp_layers", m.mtp_layers, {.min = 0, .max = 16});
    if (const JsonValue* window = o.Find("sliding_window")) {
      if (window->kind == Kind::kText) {
        o.Text("sliding_window", m.window_pattern);
      } else {
        o.Int("sliding_window", m.sliding_window, {.min = 1, .max = kMostPositions});
      }
    }
    if (const JsonValue* moe = o.Object("moe")) {
      m.moe = true;
      RunObject e(*moe, PointerTo(o.pointer(), "moe"), mistakes_);
      e.Int("experts", m.experts, {.min = 1, .max = kMostExperts});
      e.Int("topk", m.topk, {.min = 1, .max = kMostExperts});
      e.Int("moe_ffn", m.moe_ffn, {.min = 1, .max = kMostFfn});
      e.Int("shared_ffn", m.shared_ffn, {.min = 0, .max = kMostFfn});
      e.Int("dense_layers", m.dense_layers, {.min = 0, .max = kMostLayers});
      e.Int("latent", m.latent, {.min = 1, .max = kMostHidden});
      e.WarnOfSlips(file_, warned_);
    }
    if (const JsonValue* mla = o.Object("mla")) {
      m.mla = true;
      RunObject a(*mla, PointerTo(o.pointer(), "mla"), mistakes_);
      a.Int("q_lora_rank", m.q_lora_rank, {.min = 0, .max = kMostHidden});
      a.Int("kv_lora_rank", m.kv_lora_rank, {.min = 1, .max = kMostHidden});
      a.Int("qk_nope_dim", m.qk_nope_dim, {.min = 1, .max = kMostHeadSize});
      a.Int("qk_rope_dim", m.qk_rope_dim, {.min = 1, .max = kMostHeadSize});
      a.Int("v_dim", m.v_dim, {.min = 1, .max = kMostHeadSize});
      a.WarnOfSlips(file_, warned_);
    }
    o.WarnOfSlips(file_, warned_);
  }

  void ReadMeasured(const JsonValue& value, const std::string& pointer, PublishedRun& run) {
    RunObject o(value, PointerTo(pointer, "measured"), mistakes_);
    std::optional<double> step, memory;
    o.Number("step_s", step, 0, kMostStepSeconds);
    if (step) run.step = Seconds(*step);
    o.Number("tokens_s_gpu", run.tokens_per_second_per_gpu, 0, 1e12);
    o.Number("mem_gb", memory, kLeastMemoryGigabytes, kMostMemoryGigabytes);
    o.Text("mem_kind", run.memory_kind);
    std::string unit;
    static constexpr std::array<std::string_view, 2> kUnits{"GB", "GiB"};
    o.OneOf("mem_unit", unit, kUnits);
    if (memory) run.memory = Bytes(*memory * (unit == "GiB" ? Bytes(1_GiB) : Bytes(1_GB)).value);
    o.WarnOfSlips(file_, warned_);
  }

  void ReadTraits(const JsonValue& value, const std::string& pointer, RunTraits& t) {
    RunObject o(value, PointerTo(pointer, "traits"), mistakes_);
    // Words that are not known leave the trait unsaid: who reports a run has his own.
    static constexpr std::array<std::string_view, 3> kGraphs{"none", "partial", "full"};
    static constexpr std::array<std::string_view, 3> kDispatchers{"alltoall", "deepep", "hybridep"};
    static constexpr std::array<std::string_view, 2> kSharding{"FULL_SHARD", "SHARD_GRAD_OP"};
    static constexpr std::array<std::string_view, 2> kReduce{"fp32", "bf16"};
    ReadWord(o, "cuda_graph", t.cuda_graph, kGraphs);
    ReadWord(o, "dispatcher", t.dispatcher, kDispatchers);
    ReadWord(o, "sharding", t.sharding, kSharding);
    ReadWord(o, "fsdp_reduce_dtype", t.fsdp_reduce_dtype, kReduce);
    o.Bool("expert_overlap", t.expert_overlap);
    o.Bool("token_drop", t.token_drop);
    o.Bool("async_tp", t.async_tp);
    o.Bool("activation_offload", t.activation_offload);
    o.Bool("launch_blocking", t.launch_blocking);
    o.WarnOfSlips(file_, warned_);
  }

  void ReadWord(RunObject& o, std::string_view key, std::string& out,
                std::span<const std::string_view> words) {
    std::string word;
    o.Text(key, word);
    if (word.empty() || std::ranges::find(words, word) != words.end()) {
      out = word;
    } else {
      WarnOfWord(o, key, word, "taken as not said",
                 fmt::format("none of {}", fmt::join(words, ", ")));
    }
  }

  void WarnOfWord(const RunObject& o, std::string_view key, std::string_view word,
                  std::string_view taken, std::string_view what) {
    if (warned_.size() >= kMostWarnings) return;
    warned_.insert(fmt::format("{}: at {}: {}: {} is {}", file_, PointerTo(o.pointer(), key), taken,
                               JsonText(Printable(word, kMostNameShown)), what));
  }

  const std::string& file_;
  Mistakes mistakes_;
  std::set<std::string> warned_;
};

}  // namespace

PublishedRuns ParsePublishedRuns(const std::string& file, std::string_view text) {
  return RunsReader(file).Read(text);
}

PublishedRuns ReadPublishedRuns(const std::string& file) {
  return ParsePublishedRuns(file, ReadTextFile(file));
}

}  // namespace millwright
