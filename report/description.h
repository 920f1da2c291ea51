// SPDX-License-Identifier: Apache-2.0
//
// What `millwright describe` shows: the presets, what a name or file stands for, and every field
// of every config.  Each as text and as JSON.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/config_io.h"
#include "core/gpu.h"
#include "core/model.h"
#include "report/text.h"
#include "topologies/cluster.h"

namespace millwright {

std::string ModelsText(const Style& style);
std::string ModelsJson();
std::string ClustersText(const Style& style);
std::string ClustersJson();
std::string GpusText(const Style& style);
std::string GpusJson();

std::string ModelText(const ModelConfig& model, const Style& style);
std::string ModelJson(const ModelConfig& model);
std::string ClusterText(const Cluster& cluster, const Style& style);
std::string ClusterJson(const Cluster& cluster);
std::string GpuText(const GpuSpec& gpu, const Style& style);
std::string GpuJson(const GpuSpec& gpu);

// A config's fields, in the order of its file.
std::string FieldsText(const std::vector<FieldDoc>& fields, const Style& style);
std::string FieldsJson(const std::vector<FieldDoc>& fields);

// A knob of plans: its name in --require, --forbid and --explain, its flag in `estimate`.
struct KnobDoc {
  std::string name, flag, accepted, meaning;
};
std::vector<KnobDoc> KnobDocs();
std::string KnobsText(const Style& style);
std::string KnobsJson();

}  // namespace millwright
