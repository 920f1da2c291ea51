// SPDX-License-Identifier: Apache-2.0
#include "cli/full_flags.h"

#include <fmt/format.h>

#include <array>

#include "cli/job_flags.h"

namespace millwright {

void FullFlags::AddTo(CommandLine& line) {
  static constexpr std::array kFidelities{EnumName<Fidelity>{Fidelity::kFolded, "folded"},
                                          EnumName<Fidelity>{Fidelity::kFull, "full"}};
  static constexpr std::array kLinks{EnumName<Links>{Links::kShared, "shared"},
                                     EnumName<Links>{Links::kPriced, "priced"}};
  // Times of day are drawn by e^(3 sigma) and more: at 1 a step is jitter alone.
  constexpr NumberRange kSigma{.min = 0, .max = 1};
  line.Section("Fidelity");
  line.Enum("--fidelity", fidelity_, std::span<const EnumName<Fidelity>>(kFidelities),
            "folded: one GPU stands for all that do the same; full: every GPU, and collectives as "
            "flows over the cluster's links (default: folded; full with any flag below)");
  line.Enum("--links", links_, std::span<const EnumName<Links>>(kLinks),
            "shared: by whatever is on them at one time; priced: each collective as if it were "
            "alone (default: shared)");
  line.Texts("--slow", "PART=SPEED", slow_,
             "gpu:17=0.8, node:3=0.8 (all its GPUs), nic:17=0.5, link:leaf0.3-spine0.1=0.5; may "
             "be given more than once");
  line.Texts("--link-down", "PART", link_down_,
             "nic:17, leaf0.3-spine0.1: carries nothing; may be given more than once");
  line.Number("--jitter", jitter_, kSigma,
              "sigma of the log-normal by which every compute task's time varies (default: 0)");
  line.Number("--gpu-jitter", gpu_jitter_, kSigma,
              "the same, of a GPU for a whole step (default: 0)");
  line.Number("--moe-routing", routing_, kSigma,
              "sigma of the log-normal by which the load of an expert rank varies (default: 0)");
  line.Int("--seed", seed_, {0, std::int64_t{1} << 53}, "of all that is drawn (default: 0)");
  line.Int("--steps", steps_, {1, 100'000},
           "simulate so many steps, each drawn anew, for the distribution (default: 1)");
}

bool FullFlags::asks_for_full() const {
  return fidelity_ == Fidelity::kFull || links_ || !slow_.empty() || !link_down_.empty() ||
         jitter_ || gpu_jitter_ || routing_ || seed_ || steps_;
}

void FullFlags::Check(CommandLine& line, bool has_experts) const {
  if (fidelity_ == Fidelity::kFolded) {
    const auto refuse = [&](bool given, const char* flag) {
      if (given) line.Problem(flag, "needs --fidelity full");
    };
    refuse(links_.has_value(), "--links");
    refuse(!slow_.empty(), "--slow");
    refuse(!link_down_.empty(), "--link-down");
    refuse(jitter_.has_value(), "--jitter");
    refuse(gpu_jitter_.has_value(), "--gpu-jitter");
    refuse(routing_.has_value(), "--moe-routing");
    refuse(seed_.has_value(), "--seed");
    refuse(steps_.has_value(), "--steps");
  }
  if (links_ == Links::kPriced) {
    if (!link_down_.empty()) line.Problem("--link-down", "needs --links shared");
    for (const std::string& part : slow_) {
      const bool gpus = part.starts_with("gpu:") || part.starts_with("node:");
      if (!gpus) line.Problem("--slow", fmt::format("{} needs --links shared", part));
    }
  }
  const bool drawn =
      jitter_.value_or(0) > 0 || gpu_jitter_.value_or(0) > 0 || routing_.value_or(0) > 0;
  constexpr std::string_view kNeeds =
      "needs --jitter, --gpu-jitter or --moe-routing; without them every step is the same";
  const bool tried = line.HasProblems();  // one of them may be what is wrong
  if (!drawn && !tried && steps_.value_or(1) > 1) line.Problem("--steps", kNeeds);
  if (!drawn && !tried && seed_) line.Problem("--seed", kNeeds);
  if (routing_.value_or(0) > 0 && !has_experts) {
    line.Warning("--moe-routing", "the model has no experts");
  }
}

void FullFlags::NoteParts(CommandLine& line, const ClusterConfig& cluster) const {
  if ((slow_.empty() && link_down_.empty()) || !Inconsistencies(cluster).empty()) return;
  try {
    ReadDisturbance(slow_, link_down_, Cluster(cluster));
  } catch (const ConfigError& error) {
    NoteError(line, "", error);
  }
}

FullAsked FullFlags::Resolve(const Cluster& cluster) const {
  return {.options = {.share_links = links_.value_or(Links::kShared) == Links::kShared,
                      .disturbance = ReadDisturbance(slow_, link_down_, cluster),
                      .jitter = jitter_.value_or(0),
                      .routing = routing_.value_or(0),
                      .rank_jitter = gpu_jitter_.value_or(0),
                      .seed = std::uint64_t(seed_.value_or(0))},
          .steps = int(steps_.value_or(1))};
}

}  // namespace millwright
