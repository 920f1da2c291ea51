// SPDX-License-Identifier: Apache-2.0
//
// Which plans the user allows: `--require tp=8,pp=4|8` and `--forbid zero=3,recompute=full`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel.h"

namespace millwright {

enum class Knob {
  kTp,
  kSp,
  kCp,
  kCpKind,
  kPp,
  kVpp,
  kDp,
  kEp,
  kEtp,
  kMicroBatch,
  kZero,
  kZeroShard,
  kRecompute,
  kOffload,
  kSchedule,
  kOrder,
  kCpUlysses
};

// Names as written in filters, in Knob's order.
std::vector<std::string_view> KnobNames();

// none, full, full(all), full(N), selective or selective(MODULE,...); empty where `text` is none of
// these.  `any` is set where no detail was given.
std::optional<Recompute> ParseRecompute(std::string_view text, bool& any);

class PlanFilter {
 public:
  // Adds "knob=value|value,...".  ConfigError naming `option`, unless it is empty, and every
  // mistake.  A recompute value is none, selective(MODULE,...), full(all) or full(N); without
  // parentheses any such.
  void Require(std::string_view text, std::string_view option = "--require");
  void Forbid(std::string_view text, std::string_view option = "--forbid");

  bool Allows(Knob knob, int value) const;        // sp 0 or 1; kinds and schedules by enum value
  bool Allows(const Recompute& recompute) const;  // but for offloading, a knob of its own
  bool Allows(const ParallelConfig& plan) const;
  bool empty() const { return terms_.empty(); }

  // What was said of one knob.
  struct OfKnob {
    int terms = 0;
    bool required = false;              // by any of them
    std::string written;                // "--require tp=2 and --forbid tp=4"
    std::vector<int> values;            // required ones that all terms allow, each once
    std::vector<Recompute> recomputes;  // of kRecompute the same
  };
  OfKnob About(Knob knob) const;

 private:
  struct Term {
    bool forbid;
    Knob knob;
    std::vector<int> values;
    std::vector<Recompute> recomputes;
    std::vector<bool> any;  // of each: that granularity, whatever the details
    std::string written;    // "--require tp=2|4"
  };
  void Add(bool forbid, std::string_view text, std::string_view option);
  std::vector<Term> terms_;
};

}  // namespace millwright
