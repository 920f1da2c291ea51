// SPDX-License-Identifier: Apache-2.0
#include "planner/findings_bytes.h"

#include <cstring>
#include <type_traits>

#include "core/check.h"

namespace millwright {
namespace {

// Of a plan one list of fields for both ways: a writer appends what a reader takes.
class Writer {
 public:
  template <class T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static constexpr bool kReads = false;
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  void operator()(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    MILLWRIGHT_CHECK(bytes_.size() >= sizeof value);
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
  }
  static constexpr bool kReads = true;
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

template <class Io, class Choice>
void RecomputeFields(Io& io, Choice& recompute) {
  io(recompute.granularity);
  io(recompute.full_layers);
  io(recompute.offload_layers);
  std::size_t modules = recompute.modules.size();
  io(modules);
  if constexpr (Io::kReads) recompute.modules.resize(modules);
  for (auto& module : recompute.modules) io(module);
}

template <class Io, class Plan>  // Plan: a RankedPlan, const where it is written
void Fields(Io& io, Plan& ranked) {
  auto& p = ranked.plan;
  io(ranked.step);
  io(ranked.peak);
  io(p.tensor);
  io(p.sequence_parallel);
  io(p.context);
  io(p.context_kind);
  io(p.pipeline);
  io(p.virtual_stages);
  io(p.data);
  io(p.expert);
  io(p.expert_tensor);
  io(p.micro_batch_size);
  io(p.zero);
  io(p.zero_shard);
  io(p.schedule);
  io(p.order);
  io(p.context_ulysses);
  RecomputeFields(io, p.recompute);
  std::size_t stages = p.stage_layers.size();
  io(stages);
  if constexpr (Io::kReads) p.stage_layers.resize(stages);
  for (auto& layers : p.stage_layers) io(layers);
  std::size_t ranks = p.rank_recompute.size();
  io(ranks);
  if constexpr (Io::kReads) p.rank_recompute.resize(ranks);
  for (auto& recompute : p.rank_recompute) RecomputeFields(io, recompute);
}

template <class Io, class Optional>
void MaybeFields(Io& io, Optional& plan) {
  bool there = plan.has_value();
  io(there);
  if constexpr (Io::kReads) {
    if (there) plan.emplace();
  }
  if (there) Fields(io, *plan);
}

}  // namespace

std::string BytesOf(const Findings& findings) {
  Writer io;
  for (const auto* plans : {&findings.best, &findings.by_rank, &findings.least}) {
    io(plans->size());
    for (const auto& [key, plan] : *plans) {
      io(key);
      MaybeFields(io, plan);
    }
  }
  for (const std::vector<RankedPlan>& plans :
       {findings.leaders.Sorted(), findings.divisible.Sorted(), findings.near.Sorted(),
        findings.pareto.plans()}) {
    io(plans.size());
    for (const RankedPlan& plan : plans) Fields(io, plan);
  }
  io(findings.fastest);
  io(findings.searched);
  io(findings.ruled_out);
  io(findings.rejected);
  for (const OutOfMemory& item : findings.out_of_memory) {
    io(item.count);
    MaybeFields(io, item.nearest);
  }
  return std::move(io.bytes());
}

Findings FindingsOf(std::string_view bytes, const TrainingConfig& training) {
  Reader io(bytes);
  Findings findings;
  std::size_t count = 0;
  for (auto* plans : {&findings.best, &findings.by_rank, &findings.least}) {
    io(count);
    for (std::size_t i = 0; i < count; ++i) {
      LayoutKey key{};
      io(key);
      MaybeFields(io, (*plans)[key]);
    }
  }
  const auto each = [&](const auto& add) {
    io(count);
    for (std::size_t i = 0; i < count; ++i) {
      RankedPlan plan{};
      Fields(io, plan);
      add(plan);
    }
  };
  each([&](const RankedPlan& plan) { findings.leaders.Add(plan, training); });
  each([&](const RankedPlan& plan) { findings.divisible.Add(plan, training); });
  each([&](const RankedPlan& plan) { findings.near.Add(plan, training); });
  each([&](const RankedPlan& plan) { findings.pareto.Add(plan); });
  io(findings.fastest);
  io(findings.searched);
  io(findings.ruled_out);
  io(findings.rejected);
  for (OutOfMemory& item : findings.out_of_memory) {
    io(item.count);
    MaybeFields(io, item.nearest);
  }
  MILLWRIGHT_CHECK(io.at_end());
  return findings;
}

}  // namespace millwright
