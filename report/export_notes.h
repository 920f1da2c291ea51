// SPDX-License-Identifier: Apache-2.0
//
// What all exported files begin with, and what an exporter has to say about a plan.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/export.h"

namespace millwright {

class ExportNotes {
 public:
  ExportNotes(ExportFormat format, Exported& exported) : format_(format), exported_(exported) {}

  // The framework cannot be told `field`.
  void Cannot(std::string_view field, std::string_view why);
  // Releases of the framework differ in how they are told something that is written.
  void ByRelease(std::string_view how) { by_release_.emplace_back(how); }
  ExportFormat format() const { return format_; }
  // The plan's recomputation; where each pipeline rank has its own, which no framework can be told,
  // the first rank's.
  const Recompute& RecomputeOf(const ParallelConfig& plan);

  // Comment lines: whose plan it is, where the spelling is from, how to use the file, what it does
  // not say, and what other releases say otherwise.
  std::string Head(const Job& job, std::string_view what, std::string_view spelling,
                   std::string_view usage) const;
  void AddFile(std::string name, std::string text);

 private:
  ExportFormat format_;
  Exported& exported_;
  std::vector<std::string> by_release_;
};

// GPUs of one host: those of the domain, or of a compute tray where a domain is a rack.
struct Hosts {
  int count = 1;
  int gpus = 1;
};
Hosts HostsOf(const ClusterConfig& cluster);

// Layers of each chunk in the order in which a micro-batch passes them, and whether the framework's
// even split gives the same.
struct ChunkLayers {
  std::vector<int> layers;
  bool even = false;
};
ChunkLayers ChunkLayersOf(const ModelConfig& model, const ParallelConfig& plan);

// Frameworks shard what experts keep into as many groups as the rest; here a group has zero_shard
// ranks of theirs at most.
void NoteExpertShard(const Job& job, ExportNotes& notes);

// "dense" or MoE of each layer, as 0 and 1 in runs.
struct BitRun {
  bool bit = false;
  int count = 0;
};
std::vector<BitRun> MoeRuns(const ModelConfig& model);

// Each framework's part.
void ExportMegatron(const Job& job, Exported& exported);
void ExportBridge(const Job& job, Exported& exported);
void ExportTorchtitan(const Job& job, Exported& exported);
void ExportDeepSpeed(const Job& job, Exported& exported);
void ExportFsdp(const Job& job, Exported& exported);
void ExportSlurm(const Job& job, Exported& exported);

}  // namespace millwright
