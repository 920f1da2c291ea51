// SPDX-License-Identifier: Apache-2.0
#include "planner/sweep_grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "core/config_io.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

std::optional<std::int64_t> Integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// Of "8..64", "8..64+8" or "1..81*3"; empty where it is none of them, or has too many.
std::vector<std::string> Range(std::string_view text) {
  const std::size_t dots = text.find("..");
  const auto first = Integer(text.substr(0, dots));
  std::string_view rest = text.substr(dots + 2);
  const std::size_t sign = rest.find_first_of("+*");
  const auto last = Integer(rest.substr(0, sign));
  const bool adds = sign != std::string_view::npos && rest[sign] == '+';
  std::int64_t step = 2;
  if (sign != std::string_view::npos) {
    const auto given = Integer(rest.substr(sign + 1));
    if (!given || *given < (adds ? 1 : 2)) return {};
    step = *given;
  }
  if (!first || !last || *first < 1 || *last < *first) return {};
  std::vector<std::string> values;
  for (std::int64_t value = *first; value <= *last;) {
    values.push_back(fmt::format("{}", value));
    if (values.size() > kMostSweepPoints) return {};
    if (adds ? __builtin_add_overflow(value, step, &value)
             : __builtin_mul_overflow(value, step, &value)) {
      break;
    }
  }
  return values;
}

}  // namespace

std::vector<SweepAxis> ParseSweep(std::string_view text,
                                  const std::vector<std::string_view>& names) {
  std::vector<SweepAxis> axes;
  std::string mistakes;
  const auto mistake = [&](std::string what) {
    mistakes += fmt::format("{}{}", mistakes.empty() ? "" : "\n", what);
  };
  const auto shown = [](std::string_view t) { return Printable(t, kMostNameShown); };
  while (true) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::string_view name = item.substr(0, item.find('='));
    const std::string_view values =
        name.size() < item.size() ? item.substr(name.size() + 1) : std::string_view();
    SweepAxis axis{.name = std::string(name)};
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string_view nearest = NearestName(name, names);
      mistake(fmt::format(
          "unknown \"{}\"{}; there are {}", shown(name),
          nearest.empty() ? std::string() : fmt::format(", did you mean \"{}\"?", nearest),
          fmt::join(names, ", ")));
    } else if (std::any_of(axes.begin(), axes.end(),
                           [&](const SweepAxis& a) { return a.name == name; })) {
      mistake(fmt::format("{} is given twice", name));
    } else if (values.find("..") != std::string_view::npos) {
      axis.values = Range(values);
      if (axis.values.empty()) {
        mistake(
            fmt::format("{}: expected FIRST..LAST, FIRST..LAST+STEP or FIRST..LAST*FACTOR with "
                        "at most {} values, got \"{}\"",
                        name, kMostSweepPoints, shown(values)));
      }
    } else {
      for (std::string_view rest = values;;) {
        const std::string_view value = rest.substr(0, rest.find('|'));
        axis.values.emplace_back(value);
        if (value.empty()) {
          mistake(fmt::format("{}: expected values, got \"{}\"", name, shown(values)));
          break;
        }
        if (value.size() == rest.size()) break;
        rest.remove_prefix(value.size() + 1);
      }
    }
    axes.push_back(std::move(axis));
    if (item.size() == text.size()) break;
    text.remove_prefix(item.size() + 1);
  }
  if (mistakes.empty()) {
    double points = 1;
    for (const SweepAxis& axis : axes) points *= double(axis.values.size());
    if (points > double(kMostSweepPoints)) {
      mistake(fmt::format("{:.0f} points are more than {}", points, kMostSweepPoints));
    }
  }
  if (!mistakes.empty()) throw ConfigError(mistakes);
  return axes;
}

std::size_t SweepPoints(const std::vector<SweepAxis>& axes) {
  std::size_t points = 1;
  for (const SweepAxis& axis : axes) points *= axis.values.size();
  return points;
}

std::vector<std::string> SweepPoint(const std::vector<SweepAxis>& axes, std::size_t index) {
  std::vector<std::string> values(axes.size());
  for (std::size_t i = axes.size(); i-- > 0;) {
    values[i] = axes[i].values[index % axes[i].values.size()];
    index /= axes[i].values.size();
  }
  return values;
}

}  // namespace millwright
