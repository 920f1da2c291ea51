// SPDX-License-Identifier: Apache-2.0
#include "topologies/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/mistakes.h"
#include "core/unit_text.h"

namespace millwright {
namespace {

struct Field {
  double* value = nullptr;  // in the SI base unit
  Dimension dimension{};
};

template <int S, int B, int F>
Field FieldOf(Quantity<S, B, F>& quantity) {
  return {&quantity.value, DimensionOf(quantity)};
}

// Peaks go up and down together: what a chip with more of its own units would have.
std::vector<Field> FieldsOf(ClusterConfig& c, std::string_view name) {
  if (name == "hbm") return {FieldOf(c.gpu.hbm_capacity)};
  if (name == "hbm-bandwidth") return {FieldOf(c.gpu.hbm_bandwidth)};
  if (name == "flops") {
    return {FieldOf(c.gpu.peak_bf16), FieldOf(c.gpu.peak_fp8), FieldOf(c.gpu.peak_fp4)};
  }
  if (name == "bf16") return {FieldOf(c.gpu.peak_bf16)};
  if (name == "fp8") return {FieldOf(c.gpu.peak_fp8)};
  if (name == "fp4") return {FieldOf(c.gpu.peak_fp4)};
  if (name == "nvlink") return {FieldOf(c.nvlink_bandwidth)};
  if (name == "ib") return {FieldOf(c.nic_bandwidth)};
  if (name == "pcie") return {FieldOf(c.pcie_bandwidth)};
  if (name == "nvlink-latency") return {FieldOf(c.nvlink_latency)};
  if (name == "ib-latency") return {FieldOf(c.nic_latency)};
  if (name == "switch-latency") return {FieldOf(c.switch_latency)};
  return {};
}

// "+10%" or "-5%" as 1.1 or 0.95; a million times at most.
std::optional<double> Factor(std::string_view text) {
  constexpr double kMostPercent = 1e8;
  if (!text.ends_with('%') || (!text.starts_with('+') && !text.starts_with('-'))) return {};
  const bool less = text.front() == '-';
  text.remove_prefix(1);
  text.remove_suffix(1);
  double percent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(percent) ||
      percent < 0 || percent > kMostPercent) {
    return {};
  }
  return 1 + (less ? -percent : percent) / 100;
}

}  // namespace

std::span<const WhatIfName> WhatIfNames() {
  static constexpr std::array<WhatIfName, 12> names{{
      {"hbm", "memory of a GPU"},
      {"hbm-bandwidth", "its bandwidth"},
      {"flops", "peaks of all precisions (+-X% only)"},
      {"bf16", "dense BF16 peak"},
      {"fp8", "dense FP8 peak"},
      {"fp4", "dense FP4 peak"},
      {"nvlink", "a GPU's NVLink bandwidth, per direction"},
      {"ib", "bandwidth of a NIC, per direction"},
      {"pcie", "bandwidth of a PCIe link, per direction"},
      {"nvlink-latency", "GPU to GPU"},
      {"ib-latency", "of a NIC and its cable"},
      {"switch-latency", "of a fabric switch"},
  }};
  return names;
}

bool Scale(ClusterConfig& cluster, std::string_view name, double factor) {
  bool any = false;
  for (const Field& field : FieldsOf(cluster, name)) {
    any = any || *field.value != 0;
    *field.value *= factor;
  }
  return any;
}

std::string WhatIfValue(const ClusterConfig& cluster, std::string_view name) {
  ClusterConfig copy = cluster;
  const std::vector<Field> fields = FieldsOf(copy, name);
  if (fields.empty() || *fields.front().value == 0) return {};
  return ExactText(*fields.front().value, fields.front().dimension);
}

void ApplyWhatIf(ClusterConfig& cluster, std::string_view text) {
  const std::string_view whole = text;
  Mistakes mistakes("--what-if");
  std::vector<std::string_view> names;
  for (const WhatIfName& n : WhatIfNames()) names.push_back(n.name);
  std::vector<std::string_view> given;
  while (true) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::string_view name = item.substr(0, item.find('='));
    const std::string_view value =
        name.size() < item.size() ? item.substr(name.size() + 1) : std::string_view();
    const std::vector<Field> fields = FieldsOf(cluster, name);
    if (!fields.empty() && std::count(given.begin(), given.end(), name) == 1) {
      mistakes.Add("", fmt::format("{}: given more than once", name));
    }
    given.push_back(name);
    const auto shown = [](std::string_view t) { return Printable(t, kMostNameShown); };
    if (fields.empty()) {
      std::string known;
      for (const std::string_view n : names)
        known += fmt::format("{}{}", known.empty() ? "" : ", ", n);
      const std::string_view nearest = NearestName(name, names);
      mistakes.Add("", fmt::format("unknown \"{}\"{}; there are {}", shown(name),
                                   nearest.empty() ? std::string()
                                                   : fmt::format(", did you mean \"{}\"?", nearest),
                                   known));
    } else if (WhatIfValue(cluster, name).empty()) {
      mistakes.Add("", fmt::format("{}: {} has none", name, shown(cluster.name)));
    } else if (const std::optional<double> factor = Factor(value)) {
      for (const Field& field : fields) *field.value *= *factor;
    } else if (fields.size() > 1) {
      mistakes.Add(
          "", fmt::format("{}: expected a change such as +10%, got \"{}\"", name, shown(value)));
    } else if (const std::optional<double> quantity =
                   ParseQuantity(value, fields.front().dimension)) {
      *fields.front().value = *quantity;
    } else {
      mistakes.Add("", fmt::format("{}: expected a quantity such as \"{}\" or a change such as "
                                   "+10%, got \"{}\"",
                                   name, ExampleText(fields.front().dimension), shown(value)));
    }
    if (item.size() == text.size()) break;
    text.remove_prefix(item.size() + 1);
  }
  mistakes.ThrowIfAny();
  cluster.name = fmt::format("{} with {}", cluster.name, Printable(whole, kMostNameShown));
  // The bounds of a cluster's fields are those of its file.
  ReadConfig("--what-if", WriteConfig([&](ConfigIo& io) { Fields(io, cluster); }),
             [&](ConfigIo& io) { Fields(io, cluster); });
}

}  // namespace millwright
