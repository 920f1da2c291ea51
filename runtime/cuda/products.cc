// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "runtime/cuda/shared_library.h"

namespace millwright {
namespace {

// cuBLAS library documentation, cublasSetWorkspace(): 32 MiB on Hopper and Blackwell.
constexpr std::size_t kWorkspace = std::size_t{32} << 20;

// The largest power of two, up to 256, that an address is a multiple of: cuBLASLt assumes 256
// unless it is told.
std::uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 256U;
  return std::uint32_t(address & (~address + 1));
}

cudaDataType_t TypeOf(const ConstView& view, ElementType type) {
  if (view.element == Element::kFp8) return CUDA_R_8F_E4M3;
  if (view.element == Element::kFp8Gradient) return CUDA_R_8F_E5M2;
  if (type == ElementType::kFp64) return CUDA_R_64F;
  return view.width == 2 ? CUDA_R_16BF : CUDA_R_32F;
}

}  // namespace

Products::~Products() {
  for (auto& [key, prepared] : prepared_) {
    library_.desc_destroy(prepared.desc);
    for (cublasLtMatrixLayout_t layout : {prepared.a, prepared.b, prepared.d}) {
      library_.layout_destroy(layout);
    }
  }
  if (workspace_ != nullptr) cudaFree(workspace_);
  if (handle_ != nullptr) library_.destroy(handle_);
}

std::string Products::Start() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  SharedLibrary library(name.c_str());
  library.Find("cublasLtCreate", library_.create);
  library.Find("cublasLtDestroy", library_.destroy);
  library.Find("cublasLtMatmul", library_.matmul);
  library.Find("cublasLtMatmulAlgoGetHeuristic", library_.heuristic);
  library.Find("cublasLtMatmulDescCreate", library_.desc_create);
  library.Find("cublasLtMatmulDescDestroy", library_.desc_destroy);
  library.Find("cublasLtMatmulDescSetAttribute", library_.desc_set);
  library.Find("cublasLtMatrixLayoutCreate", library_.layout_create);
  library.Find("cublasLtMatrixLayoutDestroy", library_.layout_destroy);
  library.Find("cublasLtMatmulPreferenceCreate", library_.preference_create);
  library.Find("cublasLtMatmulPreferenceDestroy", library_.preference_destroy);
  library.Find("cublasLtMatmulPreferenceSetAttribute", library_.preference_set);
  library.Find("cublasLtGetStatusString", library_.text);
  if (!library.error().empty()) return library.error();
  if (const cublasStatus_t status = library_.create(&handle_); status != CUBLAS_STATUS_SUCCESS) {
    handle_ = nullptr;
    return library_.text(status);
  }
  const cudaError_t error = cudaMalloc(&workspace_, kWorkspace);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

// y = x W^T: column by column, y^T = W x^T.
std::string Products::Run(const compute::Linear& op, ElementType type, cudaStream_t stream) {
  return Run({.m = op.w.rows,
              .n = op.x.rows,
              .k = op.x.cols,
              .a = op.w,
              .b = op.x,
              .transpose_a = true,
              .d = op.y,
              .add = op.add,
              .a_scale = op.w_scale.data,
              .b_scale = op.x_scale.data},
             type, stream);
}

// dx = dy W: dx^T = W^T dy^T.
std::string Products::Run(const compute::LinearInputGradient& op, ElementType type,
                          cudaStream_t stream) {
  return Run({.m = op.w.cols,
              .n = op.dy.rows,
              .k = op.dy.cols,
              .a = op.w,
              .b = op.dy,
              .d = op.dx,
              .add = op.add},
             type, stream);
}

// dW += dy^T x: dW^T += x^T dy.
std::string Products::Run(const compute::LinearWeightGradient& op, ElementType type,
                          cudaStream_t stream) {
  return Run({.m = op.x.cols,
              .n = op.dy.cols,
              .k = op.x.rows,
              .a = op.x,
              .b = op.dy,
              .transpose_b = true,
              .d = op.dw,
              .add = true},
             type, stream);
}

std::string Products::Run(const Product& p, ElementType type, cudaStream_t stream) {
  const Key key{p.m,
                p.n,
                p.k,
                std::int64_t{p.transpose_a},
                std::int64_t{p.transpose_b},
                std::int64_t{p.add},
                TypeOf(p.a, type),
                TypeOf(p.b, type),
                TypeOf(p.d, type),
                AlignmentOf(p.a.data),
                AlignmentOf(p.b.data),
                AlignmentOf(p.d.data)};
  auto found = prepared_.find(key);
  if (found == prepared_.end()) {
    Prepared prepared;
    std::string problem = Prepare(p, type, prepared);
    found = prepared_.emplace(key, prepared).first;
    if (!problem.empty()) return problem;
  }
  const Prepared& prepared = found->second;
  // Of the type that sums are in.
  const double one64 = 1, beta64 = p.add ? 1 : 0;
  const float one32 = 1, beta32 = p.add ? 1 : 0;
  const bool wide = type == ElementType::kFp64;
  const void* one = wide ? static_cast<const void*>(&one64) : &one32;
  const void* beta = wide ? static_cast<const void*>(&beta64) : &beta32;
  cublasStatus_t status = SetScales(p, prepared.desc);
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = library_.matmul(handle_, prepared.desc, one, p.a.data, prepared.a, p.b.data,
                             prepared.b, beta, p.d.data, prepared.d, p.d.data, prepared.d,
                             &prepared.algorithm, workspace_, kWorkspace, stream);
  }
  if (status == CUBLAS_STATUS_SUCCESS) return "";
  return fmt::format("cublasLtMatmul of {} x {} x {}: {}", p.m, p.n, p.k, library_.text(status));
}

cublasStatus_t Products::SetScales(const Product& p, cublasLtMatmulDesc_t desc) {
  if (!IsFp8(p.a.element)) return CUBLAS_STATUS_SUCCESS;
  const cublasStatus_t status =
      library_.desc_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p.a_scale, sizeof p.a_scale);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return library_.desc_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p.b_scale,
                           sizeof p.b_scale);
}

std::string Products::Prepare(const Product& p, ElementType type, Prepared& prepared) {
  const bool wide = type == ElementType::kFp64;
  cublasStatus_t status =
      library_.desc_create(&prepared.desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                           wide ? CUDA_R_64F : CUDA_R_32F);
  const auto go_on = [&](auto&& call) {
    if (status == CUBLAS_STATUS_SUCCESS) status = call();
  };
  const auto transpose = [&](bool it, cublasLtMatmulDescAttributes_t which) {
    const cublasOperation_t operation = it ? CUBLAS_OP_T : CUBLAS_OP_N;
    go_on([&] { return library_.desc_set(prepared.desc, which, &operation, sizeof operation); });
  };
  transpose(p.transpose_a, CUBLASLT_MATMUL_DESC_TRANSA);
  transpose(p.transpose_b, CUBLASLT_MATMUL_DESC_TRANSB);
  if (IsFp8(p.a.element)) {
    const std::int8_t fast = p.b.element == Element::kFp8 ? 1 : 0;
    go_on([&] {
      return library_.desc_set(prepared.desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    });
    go_on([&] { return SetScales(p, prepared.desc); });
  }
  const auto layout = [&](cublasLtMatrixLayout_t& made, const ConstView& view) {
    // A row-major matrix, seen in column-major order.
    go_on([&] {
      return library_.layout_create(&made, TypeOf(view, type), std::uint64_t(view.cols),
                                    std::uint64_t(view.rows), view.cols);
    });
  };
  layout(prepared.a, p.a);
  layout(prepared.b, p.b);
  layout(prepared.d, p.d);
  cublasLtMatmulPreference_t preference = nullptr;
  go_on([&] { return library_.preference_create(&preference); });
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    go_on([&] { return library_.preference_set(preference, which, &value, sizeof value); });
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(p.a.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(p.b.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(p.d.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(p.d.data));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  go_on([&] {
    return library_.heuristic(handle_, prepared.desc, prepared.a, prepared.b, prepared.d,
                              prepared.d, preference, 1, &best, &found);
  });
  if (preference != nullptr) library_.preference_destroy(preference);
  if (status == CUBLAS_STATUS_SUCCESS && found == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
  prepared.algorithm = best.algo;
  if (status == CUBLAS_STATUS_SUCCESS) return "";
  return fmt::format("cuBLASLt has no algorithm for a product of {} x {} x {}{}: {}", p.m, p.n, p.k,
                     IsFp8(p.a.element) ? " in FP8" : "", library_.text(status));
}

}  // namespace millwright
