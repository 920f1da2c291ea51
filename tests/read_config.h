// SPDX-License-Identifier: Apache-2.0
//
// A config from the text of a file, and what is wrong with that text.
#pragma once

#include <string>
#include <string_view>

#include "core/config_io.h"

namespace millwright {

template <class Config>
Config Read(std::string_view text) {
  Config config;
  ReadConfig("c.json", text, [&](ConfigIo& io) { Fields(io, config); });
  return config;
}

// What `act` complains of; empty where it does not.
template <class Act>
  requires requires(Act act) { act(); }
std::string Complaint(const Act& act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}
template <class Config>
std::string Complaint(std::string_view text) {
  return Complaint([&] { Read<Config>(text); });
}

}  // namespace millwright
