// SPDX-License-Identifier: Apache-2.0
//
// On which links did a measured collective run?
//
// From the GPU, the domains and the words of `topology` ("8x400G NDR IB", "1 GPU/node, 1x400G",
// "pairwise nvlink"): bandwidths by datasheet, as the cluster presets have them.  Where the words
// name no NICs the preset's are taken.
#pragma once

#include <optional>
#include <string_view>

#include "core/path_profile.h"
#include "topologies/cluster_config.h"
#include "validate/measurement.h"

namespace millwright {

// The cluster preset with this GPU; nullptr where there is none.
const ClusterConfig* PresetWithGpu(const GpuSpec& gpu);

// nullopt where the GPU has no cluster preset.
std::optional<PathProfile> PathOf(const MeasuredCollective& collective, const GpuSpec& gpu);

// What bounds a ring: the narrower of a GPU's link inside its domain and its domain's NICs.
BytesPerSecond NarrowestLink(const PathProfile& path);

// "8x400G" is 8 NICs of 400 Gb/s: their bandwidth together, as the first such word has it.
std::optional<BytesPerSecond> NicBandwidth(std::string_view topology);

}  // namespace millwright
