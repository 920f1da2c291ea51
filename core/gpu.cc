// SPDX-License-Identifier: Apache-2.0
#include "core/gpu.h"

#include <fmt/format.h>

#include <array>
#include <cctype>

#include "core/mistakes.h"

namespace millwright {
namespace {

// Letters in lower case and digits; ' ', '-' and '_' dropped.
std::string NameKey(std::string_view name) {
  std::string key;
  for (char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return key;
}

// Peaks are dense; where a datasheet gives the rate with 2:4 sparsity, half of it stands here.
// Capacities are the total that the driver reports (nvidia-smi), which is less than the HBM
// fitted: ECC and firmware take theirs.
std::vector<GpuPreset> MakePresets() {
  using namespace literals;
  std::vector<GpuPreset> all;
  const GpuSpec a100_80{
      .name = "A100-80GB",
      .peak_tf32 = 156_TFLOPS,  // NVIDIA A100 datasheet (2021)
      .peak_bf16 = 312_TFLOPS,  // NVIDIA A100 datasheet (2021)
      .peak_fp8 = {},           // Ampere has none
      .peak_fp4 = {},
      .peak_fp32 = 19.5_TFLOPS,    // NVIDIA A100 datasheet (2021)
      .hbm_bandwidth = 2039_GBps,  // NVIDIA A100 datasheet (2021), SXM4 80 GB
      .hbm_capacity = 81920_MiB,   // nvidia-smi; modal-labs/modal-client PR 2797
      .sm_count = 108,             // NVIDIA A100 whitepaper, table 4
      .calibration = "A100",
      .source = "NVIDIA A100 Tensor Core GPU datasheet and whitepaper; nvidia-smi",
  };
  all.push_back({a100_80, {"A100", "A100-SXM", "A100-SXM4", "A100-SXM4-80GB", "A100-SXM-80GB"}});

  GpuSpec a100_40 = a100_80;
  a100_40.name = "A100-40GB";
  a100_40.hbm_bandwidth = 1555_GBps;  // NVIDIA A100 datasheet (2020), SXM4 40 GB
  a100_40.hbm_capacity = 40960_MiB;   // nvidia-smi; modal-labs/modal-client PR 2797
  all.push_back({a100_40, {"A100-SXM4-40GB", "A100-SXM-40GB"}});

  GpuSpec a100_pcie = a100_80;
  a100_pcie.name = "A100-PCIe-80GB";
  a100_pcie.hbm_bandwidth = 1935_GBps;  // NVIDIA A100 datasheet (2021), PCIe 80 GB
  all.push_back({a100_pcie, {"A100-PCIe", "A100-80GB-PCIe"}});

  const GpuSpec h100{
      .name = "H100-SXM",
      .peak_tf32 = 494.5_TFLOPS,     // NVIDIA H100 datasheet: 989 with sparsity
      .peak_bf16 = 989_TFLOPS,       // NVIDIA H100 datasheet: 1,979 with sparsity
      .peak_fp8 = 1979_TFLOPS,       // NVIDIA H100 datasheet: 3,958 with sparsity
      .peak_fp4 = {},                // Hopper has none
      .peak_fp32 = 67_TFLOPS,        // NVIDIA H100 datasheet
      .hbm_bandwidth = 3.35e3_GBps,  // NVIDIA H100 datasheet
      .hbm_capacity = 81559_MiB,     // nvidia-smi; NVIDIA/nccl issue 1264
      .sm_count = 132,               // NVIDIA H100 whitepaper, SXM5
      .calibration = "H100",
      .source = "NVIDIA H100 Tensor Core GPU datasheet and whitepaper; nvidia-smi",
  };
  all.push_back(
      {h100,
       {"H100", "H100-80GB", "H100-SXM5", "H100-SXM5-80GB", "H100-SXM-80GB", "H100-80GB-HBM3"}});

  GpuSpec h100_pcie = h100;
  h100_pcie.name = "H100-PCIe";
  h100_pcie.peak_tf32 = 378_TFLOPS;     // NVIDIA H100 PCIe datasheet: 756 with sparsity
  h100_pcie.peak_bf16 = 756.5_TFLOPS;   // NVIDIA H100 PCIe datasheet: 1,513 with sparsity
  h100_pcie.peak_fp8 = 1513_TFLOPS;     // NVIDIA H100 PCIe datasheet: 3,026 with sparsity
  h100_pcie.peak_fp32 = 51_TFLOPS;      // NVIDIA H100 PCIe datasheet
  h100_pcie.hbm_bandwidth = 2000_GBps;  // NVIDIA H100 PCIe datasheet
  h100_pcie.sm_count = 114;             // NVIDIA H100 whitepaper, PCIe
  all.push_back({h100_pcie, {"H100-PCIe-80GB", "H100-80GB-PCIe"}});

  GpuSpec h100_nvl = h100;
  h100_nvl.name = "H100-NVL";
  h100_nvl.peak_tf32 = 417.5_TFLOPS;   // NVIDIA H100 NVL datasheet: 835 with sparsity
  h100_nvl.peak_bf16 = 835.5_TFLOPS;   // NVIDIA H100 NVL datasheet: 1,671 with sparsity
  h100_nvl.peak_fp8 = 1670.5_TFLOPS;   // NVIDIA H100 NVL datasheet: 3,341 with sparsity
  h100_nvl.peak_fp32 = 60_TFLOPS;      // NVIDIA H100 NVL datasheet
  h100_nvl.hbm_bandwidth = 3900_GBps;  // NVIDIA H100 NVL datasheet: 3.9 TB/s a card
  h100_nvl.hbm_capacity = 95830_MiB;   // nvidia-smi, "NVIDIA H100 NVL"
  all.push_back({h100_nvl, {"H100-NVL-94GB"}});

  GpuSpec h100_500w = h100;
  h100_500w.name = "H100-HBM2e-500W";
  h100_500w.hbm_bandwidth = 2400_GBps;  // arXiv:2407.21783, section 3.3: Grand Teton's H100
  h100_500w.hbm_capacity = 97871_MiB;   // pytorch/torchtitan docs: 95.04 GiB that torch reports
  h100_500w.sustained_clock = 0.90;     // 500 of 700 W, and (500/700)^(1/3) is 0.894
  h100_500w.source = "torchtitan benchmarks: H100 with 96 GB HBM2e, 2.4 TB/s, 500 W";
  all.push_back({h100_500w, {"H100-96GB-HBM2e-500W", "H100-96GB"}});

  GpuSpec h800 = h100;  // differs in NVLink (the cluster's) and FP64 alone
  h800.name = "H800";
  h800.source = "NVIDIA H800 datasheet: H100 SXM with NVLink cut to 400 GB/s; nvidia-smi";
  all.push_back({h800, {"H800-SXM", "H800-80GB", "H800-SXM5"}});

  GpuSpec h200 = h100;
  h200.name = "H200";
  h200.hbm_bandwidth = 4800_GBps;  // NVIDIA H200 datasheet
  h200.hbm_capacity = 143771_MiB;  // nvidia-smi, "NVIDIA H200"
  h200.source = "NVIDIA H200 Tensor Core GPU datasheet; nvidia-smi";
  all.push_back({h200, {"H200-SXM", "H200-141GB", "H200-SXM-141GB", "H200-SXM5"}});

  const GpuSpec b200{
      .name = "B200",
      .peak_tf32 = 1125_TFLOPS,    // NVIDIA HGX B200 datasheet: 18 PFLOP/s, 8 GPUs, with sparsity
      .peak_bf16 = 2250_TFLOPS,    // NVIDIA HGX B200 datasheet: 36 PFLOP/s, 8 GPUs, with sparsity
      .peak_fp8 = 4500_TFLOPS,     // NVIDIA HGX B200 datasheet: 72 PFLOP/s, 8 GPUs, with sparsity
      .peak_fp4 = 9000_TFLOPS,     // NVIDIA HGX B200 datasheet: 72 PFLOP/s dense, 8 GPUs
      .peak_fp32 = 75_TFLOPS,      // NVIDIA HGX B200 datasheet: 600 TFLOP/s, 8 GPUs
      .hbm_bandwidth = 7700_GBps,  // 7,680 bit at 3,996 MHz; pytorch/ao PR 4002
      .hbm_capacity = 183359_MiB,  // nvidia-smi; NVIDIA/TensorRT-LLM issue 10278
      .sm_count = 148,             // device query; pytorch/ao PR 4002
      .calibration = "B200",
      .source = "NVIDIA HGX B200 datasheet; nvidia-smi and device query",
  };
  all.push_back({b200, {"B200-SXM", "B200-180GB", "B200-192GB", "HGX-B200"}});

  GpuSpec b300 = b200;
  b300.name = "B300";
  b300.peak_fp4 = 13500_TFLOPS;    // NVIDIA HGX B300 datasheet: 108 PFLOP/s dense, 8 GPUs
  b300.hbm_bandwidth = 8000_GBps;  // NVIDIA HGX B300 datasheet: 8 TB/s
  b300.hbm_capacity = 275040_MiB;  // nvidia-smi, "NVIDIA B300 SXM6 AC"
  b300.calibration = "B300";
  b300.source = "NVIDIA HGX B300 datasheet; nvidia-smi";
  all.push_back({b300, {"B300-SXM", "B300-288GB", "B300-SXM6", "HGX-B300"}});

  GpuSpec gb200 = b200;
  gb200.name = "GB200";
  gb200.peak_tf32 = 1250_TFLOPS;    // GB200 NVL72 datasheet: 180 PFLOP/s, 72 GPUs, with sparsity
  gb200.peak_bf16 = 2500_TFLOPS;    // GB200 NVL72 datasheet: 360 PFLOP/s, 72 GPUs, with sparsity
  gb200.peak_fp8 = 5000_TFLOPS;     // GB200 NVL72 datasheet: 720 PFLOP/s, 72 GPUs, with sparsity
  gb200.peak_fp4 = 10000_TFLOPS;    // GB200 NVL72 datasheet: 720 PFLOP/s dense, 72 GPUs
  gb200.peak_fp32 = 80_TFLOPS;      // GB200 NVL72 datasheet: 5,760 TFLOP/s, 72 GPUs
  gb200.hbm_bandwidth = 8000_GBps;  // GB200 NVL72 datasheet: 576 TB/s, 72 GPUs
  gb200.hbm_capacity = 189471_MiB;  // nvidia-smi, "NVIDIA GB200"
  gb200.sm_count = 152;             // device query of a GB200
  gb200.source = "NVIDIA GB200 NVL72 datasheet; nvidia-smi";
  all.push_back({gb200, {"GB200-NVL72", "GB200-186GB"}});

  GpuSpec gb300 = gb200;
  gb300.name = "GB300";
  gb300.peak_fp4 = 15000_TFLOPS;    // GB300 NVL72 datasheet: 1,080 PFLOP/s dense, 72 GPUs
  gb300.hbm_capacity = 284208_MiB;  // nvidia-smi, "NVIDIA GB300"
  gb300.calibration = "B300";
  gb300.source = "NVIDIA GB300 NVL72 datasheet; nvidia-smi";
  all.push_back({gb300, {"GB300-NVL72", "GB300-288GB"}});

  const GpuSpec l40s{
      .name = "L40S",
      .peak_tf32 = 183_TFLOPS,     // NVIDIA L40S datasheet: 366 with sparsity
      .peak_bf16 = 362.05_TFLOPS,  // NVIDIA L40S datasheet
      .peak_fp8 = 733_TFLOPS,      // NVIDIA L40S datasheet
      .peak_fp4 = {},              // Ada has none
      .peak_fp32 = 91.6_TFLOPS,    // NVIDIA L40S datasheet
      .hbm_bandwidth = 864_GBps,   // NVIDIA L40S datasheet (GDDR6)
      .hbm_capacity = 46068_MiB,   // nvidia-smi; modal-labs/modal-client PR 2797
      .sm_count = 142,             // NVIDIA L40S datasheet: 18,176 CUDA cores of 128 an SM
      .calibration = "generic",    // nobody measured it for us
      .source = "NVIDIA L40S datasheet; nvidia-smi",
  };
  all.push_back({l40s, {"L40S-48GB"}});

  const GpuSpec mi300x{
      .name = "MI300X",
      .peak_tf32 = 653.7_TFLOPS,   // AMD Instinct MI300X datasheet
      .peak_bf16 = 1307.4_TFLOPS,  // AMD Instinct MI300X datasheet
      .peak_fp8 = 2614.9_TFLOPS,   // AMD Instinct MI300X datasheet
      .peak_fp4 = {},              // CDNA 3 has none
      .peak_fp32 = 163.4_TFLOPS,   // AMD Instinct MI300X datasheet
      .hbm_bandwidth = 5300_GBps,  // AMD Instinct MI300X datasheet: 5.3 TB/s
      .hbm_capacity = 196592_MiB,  // rocm-smi: 206,141,652,992 bytes
      .sm_count = 304,             // AMD Instinct MI300X datasheet: compute units
      .calibration = "generic",    // nobody measured it for us
      .source = "AMD Instinct MI300X datasheet; rocm-smi",
  };
  all.push_back({mi300x, {"MI300", "MI300X-192GB"}});

  // What `run` executes on; of the right order, until it has been measured.
  const GpuSpec local_cpu{
      .name = "local-cpu",
      .peak_tf32 = 0.05_TFLOPS,   // placeholder: 2 FMA units of 8 fp32 lanes at 1.5 GHz
      .peak_bf16 = 0.05_TFLOPS,   // placeholder: as fp32, which it is computed in
      .peak_fp8 = {},             // none
      .peak_fp4 = {},             // none
      .peak_fp32 = 0.05_TFLOPS,   // placeholder: as above
      .peak_fp64 = 0.025_TFLOPS,  // placeholder: half of that
      .hbm_bandwidth = 10_GBps,   // placeholder: a core's share of DDR4
      .hbm_capacity = 4_GiB,      // placeholder: a core's share of main memory
      .sm_count = 1,
      .placeholder = true,
      .source = "placeholders for a server's core, not measured",
  };
  all.push_back({local_cpu, {"CPU-core"}});
  return all;
}

}  // namespace

std::span<const EnumName<Precision>> PrecisionNames() {
  static constexpr std::array<EnumName<Precision>, 5> names{{
      {Precision::kFp16, "fp16"},
      {Precision::kBf16, "bf16"},
      {Precision::kFp8, "fp8"},
      {Precision::kMxfp8, "mxfp8"},
      {Precision::kNvfp4, "nvfp4"},
  }};
  return names;
}
bool LowPrecision(Precision p) {
  return p == Precision::kFp8 || p == Precision::kMxfp8 || p == Precision::kNvfp4;
}

std::span<const std::string_view> CalibrationNames() {
  static constexpr std::array<std::string_view, 5> names{"A100", "H100", "B200", "B300",
                                                         kUncalibrated};
  return names;
}

FlopsPerSecond GpuSpec::peak(Precision p) const {
  switch (p) {
    case Precision::kFp16:
    case Precision::kBf16:
      return peak_bf16;
    case Precision::kFp8:
      return peak_fp8;
    case Precision::kMxfp8:  // block-scaled units came with FP4's
      return peak_fp4.value > 0 ? peak_fp8 : FlopsPerSecond(0);
    case Precision::kNvfp4:
      return peak_fp4;
  }
  return {};
}

void Fields(ConfigIo& io, GpuSpec& gpu) {
  // In FLOP/s, B/s and bytes: far from any GPU, and so that no product of them is.
  constexpr NumberRange kPeak{.min = 0, .max = 1e20}, kMainPeak{.min = 1e6, .max = 1e20};
  constexpr NumberRange kMemoryBandwidth{.min = 1e3, .max = 1e17};
  constexpr NumberRange kMemory{.min = 1e6, .max = 1e16};
  std::string inherit;
  io.Text("inherit", inherit, "GPU preset that the other fields change; empty: none");
  if (io.reading() && !inherit.empty()) {
    try {
      gpu = FindGpu(inherit);
    } catch (const ConfigError& error) {
      io.Mistake("inherit", error.what());
    }
  }
  io.Text("name", gpu.name, "what to call it");
  io.Quantity("peak_fp32", gpu.peak_fp32, kPeak, "dense, outside the tensor cores");
  io.Quantity("peak_fp64", gpu.peak_fp64, kPeak, "of CPU cores; 0: not given");
  io.Quantity("peak_tf32", gpu.peak_tf32, kPeak, "dense tensor-core peak; 0: none");
  io.Quantity("peak_bf16", gpu.peak_bf16, kMainPeak, "dense tensor-core peak, FP16's too");
  io.Quantity("peak_fp8", gpu.peak_fp8, kPeak, "dense, MXFP8's too; 0: none");
  io.Quantity("peak_fp4", gpu.peak_fp4, kPeak, "dense NVFP4 peak; 0: none");
  io.Quantity("hbm_bandwidth", gpu.hbm_bandwidth, kMemoryBandwidth,
              "of device memory, by datasheet");
  io.Quantity("hbm_capacity", gpu.hbm_capacity, kMemory, "device memory the driver reports");
  io.Int("sm_count", gpu.sm_count, {.min = 1, .max = 1 << 16}, "multiprocessors");
  io.Number("sustained_clock", gpu.sustained_clock, {.min = 0.1, .max = 2},
            "clock under sustained load over that of its family's full-power part: below 1 for a "
            "power-limited one");
  io.Name("calibration", gpu.calibration, CalibrationNames(),
          "GPU family whose measured efficiencies it takes; generic: none measured, H100's "
          "fractions of the datasheet");
  io.Text("calibration_file", gpu.calibration_file,
          "a file of calibrate, whose curves of GEMMs and collectives, and parameters fitted to "
          "own runs, cost a step; empty: none");
  io.Bool("placeholder", gpu.placeholder,
          "the rates are of the right order only: those of a calibration file take their place");
  io.Text("source", gpu.source, "where the numbers come from");
}

std::span<const GpuPreset> GpuPresets() {
  static const std::vector<GpuPreset> presets = MakePresets();
  return presets;
}

bool SameName(std::string_view a, std::string_view b) { return NameKey(a) == NameKey(b); }

std::string_view NearestPreset(std::string_view word, std::span<const PresetName> names) {
  const std::string key = NameKey(word);
  std::vector<std::string> keys;
  for (const PresetName& n : names) keys.push_back(NameKey(n.written));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  const std::string_view nearest = NearestName(key, views);
  for (std::size_t i = 0; i < keys.size() && !nearest.empty(); ++i) {
    if (keys[i] == nearest) return names[i].preset;
  }
  return {};
}

const GpuSpec* GpuNamed(std::string_view name) {
  for (const GpuPreset& preset : GpuPresets()) {
    if (SameName(name, preset.spec.name)) return &preset.spec;
    for (const std::string& alias : preset.aliases) {
      if (SameName(name, alias)) return &preset.spec;
    }
  }
  return nullptr;
}

const GpuSpec& FindGpu(std::string_view name) {
  if (const GpuSpec* gpu = GpuNamed(name)) return *gpu;
  std::vector<PresetName> names;
  std::string known;
  for (const GpuPreset& preset : GpuPresets()) {
    names.push_back({preset.spec.name, preset.spec.name});
    for (const std::string& alias : preset.aliases) names.push_back({alias, preset.spec.name});
    known += (known.empty() ? "" : ", ") + preset.spec.name;
  }
  const std::string_view nearest = NearestPreset(name, names);
  throw ConfigError(fmt::format(
      "unknown GPU \"{}\"{}; known: {}", Printable(name, kMostNameShown),
      nearest.empty() ? std::string() : fmt::format(", did you mean \"{}\"?", nearest), known));
}

}  // namespace millwright
