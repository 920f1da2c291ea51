// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as --vary, --choose and --what-if: taken or refused with ConfigError; what is taken has
// points within bounds, and makes a cluster that can be written and read.

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/check.h"
#include "core/config_io.h"
#include "core/model_presets.h"
#include "planner/sweep_grid.h"
#include "planner/training_options.h"
#include "topologies/what_if.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  const std::string text(data, data + size);
  try {
    const std::vector<SweepAxis> axes = ParseSweep(text, {"seq", "nodes", "tp", "hbm"});
    const std::size_t points = SweepPoints(axes);
    MILLWRIGHT_CHECK(points > 0 && points <= kMostSweepPoints);
    MILLWRIGHT_CHECK(SweepPoint(axes, points - 1).size() == axes.size());
  } catch (const ConfigError&) {
  }
  try {
    static const ModelConfig model = PresetModel("mixtral-8x7b");
    const std::vector<SweepAxis> axes = ParseChoices(text, model);
    MILLWRIGHT_CHECK(SweepPoints(axes) <= kMostChoices);
    ChoiceOf({}, axes, SweepPoints(axes) - 1);
  } catch (const ConfigError&) {
  }
  try {
    ClusterConfig cluster = FindCluster("dgx-h100");
    ApplyWhatIf(cluster, text);
    MILLWRIGHT_CHECK(Inconsistencies(cluster).empty());
  } catch (const ConfigError&) {
  }
  return 0;
}
