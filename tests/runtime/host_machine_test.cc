// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_machine.h"

#include <gtest/gtest.h>

namespace millwright {
namespace {

TEST(HostMachine, OfAnX86) {
  const HostMachine machine = ParseCpuInfo(
      "processor\t: 0\nmodel name\t: AMD EPYC, \"Milan\"\ncpu MHz\t\t: 2596.136\n\n"
      "processor\t: 1\nmodel name\t: another\ncpu MHz\t\t: 1000\n");
  // What would end a cell of a table is a blank.
  EXPECT_EQ(machine.model, "AMD EPYC   Milan ");
  EXPECT_EQ(machine.processors, 2);
  EXPECT_EQ(machine.megahertz, 2596.136);
  EXPECT_EQ(machine.Text(), "AMD EPYC   Milan , 2 processors at 2596 MHz");
}

TEST(HostMachine, WithoutNameOrClock) {
  EXPECT_EQ(ParseCpuInfo("processor\t: 0\nBogoMIPS\t: 50.00\n").Text(),
            "a CPU without a name, 1 processor");
  EXPECT_EQ(ParseCpuInfo("cpu MHz : fast\ncpu MHz : nan\nmodel name:\n:\n").megahertz, 0);
  EXPECT_EQ(ParseCpuInfo("").processors, 0);
}

TEST(HostMachine, ThisOneHasProcessors) { EXPECT_GE(ThisMachine().processors, 1); }

}  // namespace
}  // namespace millwright
