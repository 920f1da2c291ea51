// SPDX-License-Identifier: Apache-2.0
//
// Which training steps were measured, and what is said of them?
//
// A runs file is a JSON array with one object a run: id, model, gpu, num_gpus, the parallel
// degrees, mbs, gbs and measured.step_s, and more where it is known (README).  A key that is absent
// or null is not known: it takes its default or, where there is none, leaves the run out with that
// reason.  A key of the wrong type or out of range is a mistake; all mistakes of a file come in one
// pass.  Keys that are not read are left alone, but for those that look like a slip of the pen for
// one that is, which are warned of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"

namespace millwright {

struct RunModel {
  std::string name;
  std::optional<std::int64_t> layers, hidden, heads, kv_heads, head_dim, ffn, vocab, seq;
  std::optional<bool> gated, tied_embeddings;
  std::string attn;    // mha, gqa or mla
  std::string hybrid;  // pattern of layers that are not all transformer layers
  bool mamba = false;  // state-space layers are described
  std::optional<std::int64_t> sliding_window;  // keys, in every layer
  std::string window_pattern;                  // or in words: "128 on every other layer, ..."
  std::optional<std::int64_t> mtp_layers;
  std::string pos_emb;

  bool moe = false;
  std::optional<std::int64_t> experts, topk, moe_ffn, shared_ffn, dense_layers, latent;

  bool mla = false;  // its ranks are given
  std::optional<std::int64_t> q_lora_rank, kv_lora_rank, qk_nope_dim, qk_rope_dim, v_dim;
};

// What a run's own words say of how it was run; absent: not said.
struct RunTraits {
  std::string cuda_graph;  // none, partial or full
  std::string dispatcher;  // alltoall, deepep or hybridep
  std::string sharding;    // FULL_SHARD or SHARD_GRAD_OP
  std::string fsdp_reduce_dtype;
  std::optional<bool> expert_overlap, token_drop, async_tp, activation_offload, launch_blocking;
};

struct PublishedRun {
  std::string id;
  std::size_t index = 0;  // in the file
  std::string source, source_detail, gpu, interconnect, precision, recompute, framework, outcome,
      notes;
  RunModel model;
  std::optional<std::int64_t> gpus_per_node, num_gpus, tp, pp, vpp, cp, ep, etp, dp, zero, mbs, gbs;
  std::optional<bool> sp, fsdp, hsdp, flash_attention;
  RunTraits traits;

  std::optional<Seconds> step;
  std::optional<Bytes> memory;
  std::string memory_kind;
  std::optional<double> tokens_per_second_per_gpu;

  bool out_of_memory() const { return outcome.starts_with("OOM"); }
  // "foundry" of "foundry-012": the source that the run belongs to.
  std::string group() const { return id.substr(0, id.find('-')); }
};

struct PublishedRuns {
  std::vector<PublishedRun> runs;
  std::vector<std::string> warnings;
};

// ConfigError with every mistake.  `file` is for messages.
PublishedRuns ParsePublishedRuns(const std::string& file, std::string_view text);
PublishedRuns ReadPublishedRuns(const std::string& file);

}  // namespace millwright
