// SPDX-License-Identifier: Apache-2.0
//
// Which machine is it that measures?  What /proc/cpuinfo of Linux says; where it says nothing (it
// has no model name on ARM, no clock on many) that is left out.
#pragma once

#include <string>
#include <string_view>

namespace millwright {

struct HostMachine {
  std::string model;         // of the first processor
  int processors = 0;        // that the system runs threads on
  double megahertz = 0;      // of the first processor, when it was asked; 0: not known
  std::string Text() const;  // "AMD EPYC, 2 processors at 2596 MHz"
};

// A name without what splits the cells of a table.
std::string PlainCell(std::string_view text);
HostMachine ParseCpuInfo(std::string_view text);
HostMachine ThisMachine();

}  // namespace millwright
