// SPDX-License-Identifier: Apache-2.0
//
// Attention by cuDNN, fused into one kernel for each pass: a graph for each shape, made once.
//
// cuDNN is loaded when it is needed.  It fuses only graphs that it knows: attention operation by
// operation, with the tensors and in the order that NVIDIA's cudnn-frontend gives them to cuDNN 9
// (include/cudnn_frontend/node/scaled_dot_product_flash_attention.h, softmax.h and
// diagonal_band_mask.h, the "Composite" nodes).  Of backward it adds up dq as blocks of keys come
// to it, in any order, so that last bits differ from call to call.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/operation.h"

namespace millwright {

class CudnnAttention {
 public:
  CudnnAttention();
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // What went wrong, or nothing; so do the others.  For the current GPU, or, to prepare graphs and
  // not to run them, for one that is described in the way of cuDNN's
  // CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION.
  std::string Start(const std::string& device = {});
  std::string version() const;  // "cuDNN 9.19.0"

  // Whether it is meant for them: BF16, causal without a window, heads of at most 128 elements and
  // a multiple of 8.
  static bool Takes(const AttentionLayout& layout, ElementType type);
  // Of the workspace, so many bytes are to be given to Run.
  std::string Prepare(const AttentionCall& call, std::int64_t& workspace);
  // What was prepared, on a cudaStream_t.
  std::string Run(const AttentionCall& call, void* workspace, void* stream);

 private:
  struct Shape {
    std::int64_t sequences = 1, tokens = 0, head_size = 1;
    int heads = 1, groups = 1;
    float scale = 1;
    bool backward = false;
    auto operator<=>(const Shape&) const = default;
  };
  struct Library;
  struct Plan;
  class Builder;

  static Shape ShapeOf(const AttentionCall& call);

  std::unique_ptr<Library> library_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace millwright
