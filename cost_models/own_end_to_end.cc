// SPDX-License-Identifier: Apache-2.0
#include "cost_models/own_end_to_end.h"

#include <fmt/format.h>

#include <algorithm>

#include "cost_models/end_to_end.h"

namespace millwright {

void Fields(ConfigIo& io, OwnEndToEnd& own) {
  io.Int("runs", own.runs, {.min = 1, .max = 1 << 24}, "training steps that it was fitted to",
         Presence::kRequired);
  io.Number("shipped_median_ape", own.shipped_median_ape, kNotNegative,
            "median error of those by the shipped parameters, a share");
  io.Number("median_ape", own.median_ape, kNotNegative, "by these");
  io.Number("cv_median_ape", own.cv_median_ape, kNotNegative,
            "by fits that left them out; 0: of fewer than three runs");
  io.Array<OwnEndToEnd::Parameter>(
      "parameters", own.parameters, "those that the runs moved, in place of the shipped ones",
      [&](OwnEndToEnd::Parameter& p) {
        io.Text("name", p.name, "which (cost_models/end_to_end.h)", Presence::kRequired);
        FittedField(io, "value", "error", p.value, kPositive, "what takes the shipped one's place",
                    Presence::kRequired);
        if (p.name.empty()) return;  // missing, which is said
        const EndToEndField* const field = FieldNamed(p.name);
        if (field == nullptr) {
          std::string names;
          for (const EndToEndField& f : EndToEndFields()) {
            names += (names.empty() ? "" : ", ") + std::string(f.name);
          }
          io.Problem("name", "is no end-to-end parameter; they are " + names);
          return;
        }
        // Anything else is a slip, not a cluster.
        constexpr double kPlausible = 100;
        const double shipped = field->shipped;
        const double least = shipped / kPlausible;
        const double most = std::min(field->most, shipped * kPlausible);
        if (p.value.value < least || p.value.value > most) {
          io.Problem("value", fmt::format("{} is from {:g} to {:g}", p.name, least, most));
        }
      });
  std::vector<std::string> names;
  for (const OwnEndToEnd::Parameter& p : own.parameters) names.push_back(p.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) io.Problem("parameters", *twice + " is there twice");
}

}  // namespace millwright
