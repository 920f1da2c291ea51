// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of linear layers by cuBLASLt.
//
// BF16 products are summed in FP32, FP32 ones in FP32 (no TF32), FP64 ones in FP64.  Those of FP8
// operands are summed as Transformer Engine does, in the forward pass with fast accumulation, with
// a gradient (E5M2) without; their results are BF16 or FP32.  Of each shape and alignment
// cuBLASLt's first proposal is taken, and kept.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "runtime/operation.h"

namespace millwright {

class Products {
 public:
  Products() = default;
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // What went wrong, or nothing; so do the others.
  std::string Start();
  std::string Run(const compute::Linear& op, ElementType type, cudaStream_t stream);
  std::string Run(const compute::LinearInputGradient& op, ElementType type, cudaStream_t stream);
  std::string Run(const compute::LinearWeightGradient& op, ElementType type, cudaStream_t stream);

 private:
  // d (+)= a b, all in column-major order: what is a row of ours is a column here.
  struct Product {
    std::int64_t m = 0, n = 0, k = 0;
    ConstView a, b;
    bool transpose_a = false, transpose_b = false;
    View d;
    bool add = false;
    const void *a_scale = nullptr, *b_scale = nullptr;  // in FP8, of one FP32; null: 1
  };
  struct Library {
    decltype(&::cublasLtCreate) create = nullptr;
    decltype(&::cublasLtDestroy) destroy = nullptr;
    decltype(&::cublasLtMatmul) matmul = nullptr;
    decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
    decltype(&::cublasLtMatmulDescCreate) desc_create = nullptr;
    decltype(&::cublasLtMatmulDescDestroy) desc_destroy = nullptr;
    decltype(&::cublasLtMatmulDescSetAttribute) desc_set = nullptr;
    decltype(&::cublasLtMatrixLayoutCreate) layout_create = nullptr;
    decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
    decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
    decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
    decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
    decltype(&::cublasLtGetStatusString) text = nullptr;
  };
  // What cuBLASLt knows a product by, and the algorithm.
  struct Prepared {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  using Key = std::array<std::int64_t, 12>;

  std::string Run(const Product& product, ElementType type, cudaStream_t stream);
  std::string Prepare(const Product& product, ElementType type, Prepared& prepared);
  cublasStatus_t SetScales(const Product& product, cublasLtMatmulDesc_t desc);

  Library library_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Prepared> prepared_;
};

}  // namespace millwright
