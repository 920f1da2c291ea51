// SPDX-License-Identifier: Apache-2.0
//
// What nccl-tests prints, pasted as text: which collective, on how many GPUs, and the times.
//
// From the header come the collective ("Collective test starting: all_gather_perf", or a command
// line that names the program), the GPUs (a "Rank" line each, with host and GPU name) and hence
// the domains (hosts: a rack of several is not seen), and from the rows size and out-of-place
// time.  Repeats of a size keep each row.  Several runs may follow one another in one file.
#pragma once

#include <string>
#include <string_view>

#include "validate/measurement.h"

namespace millwright {

// Whether `text` looks like nccl-tests' output rather than a table.
bool IsNcclTestsOutput(std::string_view text);

// Adds the rows to `set`, whose last file this is.  ConfigError with every mistake.
void ReadNcclTests(const std::string& file, std::string_view text, MeasurementSet& set);

}  // namespace millwright
