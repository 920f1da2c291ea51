// SPDX-License-Identifier: Apache-2.0
#include "core/text_reader.h"

#include <fmt/format.h>

#include "core/config_io.h"
#include "core/mistakes.h"

namespace millwright {

void TextReader::Fail(std::string_view what) const {
  Mistakes one(file_);
  one.Add("", fmt::format("line {}: {}", line_, what));
  one.ThrowIfAny();
  throw ConfigError(file_);
}

}  // namespace millwright
