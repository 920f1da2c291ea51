// SPDX-License-Identifier: Apache-2.0
//
// `validate --runs --html`: predicted against measured steps as a page to look at.
#pragma once

#include "report/file_writer.h"
#include "validate/runs.h"

namespace millwright {

// Does not commit `out`.
void WriteValidationPage(const RunsReport& report, FileWriter& out);

}  // namespace millwright
