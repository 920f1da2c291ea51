// SPDX-License-Identifier: Apache-2.0
//
// Measurement files: tables of single operations as CSV, and nccl-tests' output pasted as text.
//
// A CSV file is known by its columns, those of the shared data (`describe` of the README); all of
// them must be there, in any order, and others are refused with the nearest name.  Every cell is
// read strictly.  What no GPU could do is not believed: a row that is faster than the datasheet's
// peak is flagged, and where most rows of a file are, or are a hundred times too slow, the unit is
// wrong and the file is refused.  What has no datasheet is believed.  A row that is there twice
// counts once and is flagged.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "validate/measurement.h"

namespace millwright {

// Files, and folders of which every .csv, .txt and .log file is taken, in the order of their
// names.  ConfigError with every mistake of every file.
MeasurementSet ReadMeasurements(std::span<const std::string> paths);

// One file's text.  What it holds is added to `set`.
void ReadMeasurementFile(const std::string& file, std::string_view text, MeasurementSet& set);

// Their names, in the order of kTableNames' tables.
std::span<const std::string_view> ColumnsOfTable(std::size_t table);

// The least time that `gpu`, by its datasheet, needs for a row: FLOPs over the peak, bytes over
// three times the HBM bandwidth (a level-two cache may hold them) and bytes over NVLink; 0 where
// the GPU is not known.  A NIC's share is not known here, so that across domains NVLink bounds.
Seconds LeastTime(const Measurement& row);

}  // namespace millwright
