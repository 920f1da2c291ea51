// SPDX-License-Identifier: Apache-2.0
//
// Measurements as the tables that validate/measurement_files reads.
#pragma once

#include <span>
#include <string>

#include "validate/measurement.h"

namespace millwright {

// Those of `rows` that are of the table (by the order of kTableNames), a line each under the names
// of its columns; times to six digits.
std::string WriteTable(std::span<const Measurement> rows, std::size_t table);

}  // namespace millwright
