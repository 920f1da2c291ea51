// SPDX-License-Identifier: Apache-2.0
//
// What a GPU can do by its datasheet.  Achieved rates are cost_models' business.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config_io.h"
#include "core/units.h"

namespace millwright {

enum class Precision { kFp16, kBf16, kFp8, kMxfp8, kNvfp4 };
std::span<const EnumName<Precision>> PrecisionNames();
bool LowPrecision(Precision p);  // below 16 bits

// The families of GPUs whose efficiencies there are, and "generic" for all others; cost_models
// has a calibration of each name.
std::span<const std::string_view> CalibrationNames();
inline constexpr std::string_view kUncalibrated = "generic";

struct GpuSpec {
  std::string name;
  // Dense (no sparsity) tensor-core peaks; 0 where the GPU lacks the precision.  No training step
  // is costed at TF32's, or at that of FP32.
  FlopsPerSecond peak_tf32, peak_bf16, peak_fp8, peak_fp4;
  FlopsPerSecond peak_fp32;  // outside the tensor cores
  FlopsPerSecond peak_fp64;  // of CPU cores; of a GPU it is not given, nothing is costed at it
  BytesPerSecond hbm_bandwidth;
  Bytes hbm_capacity;  // what the driver reports, not the name on the box
  int sm_count = 0;
  double sustained_clock = 1;              // under load, over that of its family's full-power part
  std::string calibration{kUncalibrated};  // whose efficiency curves it takes
  std::string calibration_file;            // curves measured on it; empty: its family's
  bool placeholder = false;                // no datasheet: a calibration file has its rates
  std::string source;
  bool operator==(const GpuSpec&) const = default;

  // FP16 has BF16's peak; MXFP8 has FP8's where there is FP4 too.  0 where not supported.
  FlopsPerSecond peak(Precision p) const;
  // Whether its own or its family's efficiencies are measured.
  bool measured() const { return calibration != kUncalibrated || !calibration_file.empty(); }
};

void Fields(ConfigIo& io, GpuSpec& gpu);

struct GpuPreset {
  GpuSpec spec;
  std::vector<std::string> aliases;
};
std::span<const GpuPreset> GpuPresets();

// By name or alias, ignoring case, spaces, '-' and '_'.  ConfigError naming the nearest.
const GpuSpec& FindGpu(std::string_view name);
// The same, nullptr where there is none.
const GpuSpec* GpuNamed(std::string_view name);

// How every list of presets compares names: ignoring case, spaces, '-' and '_'.
bool SameName(std::string_view a, std::string_view b);

// A name or alias as users write it, and the preset that it stands for.
struct PresetName {
  std::string_view written;
  std::string_view preset;
};
// The preset with the name nearest to `word`; empty where none is near enough to suggest.
std::string_view NearestPreset(std::string_view word, std::span<const PresetName> names);

}  // namespace millwright
