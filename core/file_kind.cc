// SPDX-License-Identifier: Apache-2.0
#include "core/file_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "core/json_value.h"
#include "core/mistakes.h"

namespace millwright {
namespace {

struct KindText {
  std::string_view what;
  std::string_view how_to_give;
};
KindText TextOf(FileKind kind) {
  switch (kind) {
    case FileKind::kUnknown:
      return {"a file", ""};
    case FileKind::kHuggingFace:
      return {"a Hugging Face config", "give it with --model"};
    case FileKind::kModel:
      return {"a model", "give it with --model"};
    case FileKind::kCluster:
      return {"a cluster", "give it with --cluster"};
    case FileKind::kJob:
      return {"a job file", "give it by itself, without an option"};
    case FileKind::kExecuted:
      return {"an executed run", "give it to validate, with --executed"};
    case FileKind::kCurves:
      return {"a calibration", "give it with --calibration"};
  }
  return {};
}

bool IsModel(FileKind kind) { return kind == FileKind::kHuggingFace || kind == FileKind::kModel; }

}  // namespace

FileKind KindOf(const std::string& file, std::string_view text) {
  Mistakes ignored(file);
  const JsonValue root = ParseJson(file, text, ignored);
  const auto has = [&](std::initializer_list<std::string_view> keys) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](std::string_view key) { return root.find(key) != nullptr; });
  };
  if (has({"model_type", "architectures"})) return FileKind::kHuggingFace;
  if (has({"executed"})) return FileKind::kExecuted;
  if (has({"model", "model_from", "training", "cluster", "parallel", "search"}))
    return FileKind::kJob;
  if (has({"num_layers"})) return FileKind::kModel;
  if (has({"rates", "gemm", "attention", "collective", "provenance"})) return FileKind::kCurves;
  if (has({"inherit", "gpu", "gpus_per_node", "domain_link", "nics_per_node"}))
    return FileKind::kCluster;
  return FileKind::kUnknown;
}

FileKind RefuseOtherKinds(const std::string& file, std::string_view text, FileKind wanted) {
  const FileKind kind = KindOf(file, text);
  if (kind == FileKind::kUnknown || kind == wanted || (IsModel(kind) && IsModel(wanted))) {
    return kind;
  }
  Mistakes one(file);
  one.Add("", fmt::format("is {}, not {}; {}", TextOf(kind).what, TextOf(wanted).what,
                          TextOf(kind).how_to_give));
  one.ThrowIfAny();
  return kind;  // not reached
}

}  // namespace millwright
