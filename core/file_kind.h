// SPDX-License-Identifier: Apache-2.0
//
// Which kind of JSON file did the user hand over, where another kind was asked for?
//
// A guess by a few keys at the top that only one kind has.  It serves messages alone: a file that
// tells nothing is left to the reader, whose complaints name each field.
#pragma once

#include <string>
#include <string_view>

namespace millwright {

enum class FileKind { kUnknown, kHuggingFace, kModel, kCluster, kJob, kExecuted, kCurves };

// ConfigError where `text` is not JSON.
FileKind KindOf(const std::string& file, std::string_view text);

// ConfigError "FILE: is a job file, not a cluster; ..." where `text` is plainly of another kind
// than `wanted`, else what it is.  A model may be written in either way.
FileKind RefuseOtherKinds(const std::string& file, std::string_view text, FileKind wanted);

}  // namespace millwright
