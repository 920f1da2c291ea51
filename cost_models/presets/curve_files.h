// SPDX-License-Identifier: Apache-2.0
//
// The calibration files that the program carries, as text; the build makes the table from
// presets/curves/*.json.
#pragma once

#include <span>
#include <string_view>

namespace millwright {

struct CurveFile {
  std::string_view gpu, text;
};
std::span<const CurveFile> CurveFiles();

}  // namespace millwright
