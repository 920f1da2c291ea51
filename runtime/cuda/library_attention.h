// SPDX-License-Identifier: Apache-2.0
//
// Which attention a library computes (GpuCalls::attention_*: cuDNN), and which our own kernels.
//
// The first call of each shape is computed by both, on the data at hand, and the library has the
// shape from then on if they agree to within what BF16 rounds.  Where it cannot start, refuses the
// shape or differs, our kernels go on, and the first time that is said.  What the comparison needs,
// and the library's workspace, are tensors of the backend, which counts them.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "runtime/backend.h"
#include "runtime/cuda/gpu_calls.h"

namespace millwright {

class LibraryAttention {
 public:
  // The calls and the backend must outlive it.  `warn` gets one line.
  LibraryAttention(const GpuCalls& calls, Backend& backend, ElementType type,
                   std::function<void(const std::string&)> warn);
  ~LibraryAttention();
  LibraryAttention(const LibraryAttention&) = delete;
  LibraryAttention& operator=(const LibraryAttention&) = delete;

  // Enqueues the call, or gives false: it is for our own kernels.  `problem` is what the library
  // says where it fails at a shape that it has computed before.
  bool Run(const AttentionCall& call, GpuCalls::Handle stream, GpuCalls::Status& problem);
  // "cuDNN 9.19.0", "own kernels", or how many shapes are whose.
  std::string Name() const;

 private:
  struct Shape {
    std::size_t pass = 0;
    std::int64_t rows = 0;
    AttentionLayout layout;
    auto operator<=>(const Shape&) const = default;
  };
  struct Choice {
    bool library = false;
    std::int64_t workspace = 0;
  };

  static Shape ShapeOf(const AttentionCall& call);
  bool Takes(const Shape& shape) const;
  Choice Choose(const AttentionCall& call, const Shape& shape, GpuCalls::Handle stream);
  GpuCalls::Status Start();
  GpuCalls::Status Call(const AttentionCall& call, std::int64_t workspace, GpuCalls::Handle stream);
  // What of the call's outputs is not what our own kernels make of its inputs.
  std::string Difference(const AttentionCall& call);

  const GpuCalls& calls_;
  Backend& backend_;
  ElementType type_;
  std::function<void(const std::string&)> warn_;
  GpuCalls::Handle handle_ = nullptr;
  std::string name_;          // of the library
  GpuCalls::Status missing_;  // why it could not start
  std::map<Shape, Choice> choices_;
  int by_library_ = 0, by_own_ = 0;  // shapes
  bool warned_ = false;
};

}  // namespace millwright
