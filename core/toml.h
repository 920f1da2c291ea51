// SPDX-License-Identifier: Apache-2.0
//
// What a TOML file says, as the tree that core/json_value has for JSON.
//
// Understood of TOML 1.0: tables, dotted and quoted keys, strings on one line, integers, floats,
// booleans, arrays over several lines and inline tables.  Not: dates, strings over several lines,
// arrays of tables; each is a mistake that names its line.  Limits: 64 levels of nesting.
#pragma once

#include <string>
#include <string_view>

#include "core/json_value.h"

namespace millwright {

// An object.  ConfigError "FILE: line L: ..." at the first mistake.
JsonValue ParseToml(const std::string& file, std::string_view text);

}  // namespace millwright
