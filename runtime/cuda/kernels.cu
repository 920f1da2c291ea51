// SPDX-License-Identifier: Apache-2.0
//
// Written to be right and readable; of the memory-bound ones each element is read and written once,
// neighbouring threads having neighbouring elements.  Sums are taken in one order, so that the same
// input gives the same bits.  Attention works on CUDA cores, not on tensor cores: expect a tenth of
// a tuned kernel's speed in BF16.
//
// V is what values are stored in, S what is added up and computed in.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "runtime/cuda/kernels.h"

namespace millwright {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// --- Numbers

__device__ inline float Sum(float x) { return x; }
__device__ inline double Sum(double x) { return x; }
__device__ inline float Sum(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T, class S>
__device__ inline T To(S x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(float(x));
  } else {
    return T(x);
  }
}

__device__ inline float Exp(float x) { return expf(x); }
__device__ inline double Exp(double x) { return exp(x); }
__device__ inline float Log(float x) { return logf(x); }
__device__ inline double Log(double x) { return log(x); }
__device__ inline float Erf(float x) { return erff(x); }
__device__ inline double Erf(double x) { return erf(x); }
__device__ inline float SquareRoot(float x) { return sqrtf(x); }
__device__ inline double SquareRoot(double x) { return sqrt(x); }

template <class S>
__device__ inline S MinusInfinity() {
  return S(-INFINITY);
}

template <class T>
T* Data(View view) {
  return reinterpret_cast<T*>(view.data);
}
template <class T>
const T* Data(ConstView view) {
  return reinterpret_cast<const T*>(view.data);
}

int Blocks(std::int64_t elements) {
  constexpr std::int64_t kMost = 1 << 20;  // a loop in the kernel does the rest
  const std::int64_t blocks = (elements + kThreads - 1) / kThreads;
  return int(blocks < kMost ? blocks : kMost);
}

// The sum, or maximum, over a block's threads, on all of them.
template <bool kMaximum, class S>
__device__ S OverBlock(S value) {
  __shared__ S of_warp[kThreads / kWarp];
  const auto both = [](S a, S b) {
    if constexpr (kMaximum) {
      return a > b ? a : b;
    } else {
      return a + b;
    }
  };
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    value = both(value, __shfl_xor_sync(0xffffffffU, value, lane));
  }
  __syncthreads();  // of_warp may still be read from the call before
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warp[0];
  for (int warp = 1; warp < kThreads / kWarp; ++warp) value = both(value, of_warp[warp]);
  return value;
}

template <class... Parameters>
void Start(void (*kernel)(Parameters...), dim3 grid, cudaStream_t stream,
           std::type_identity_t<Parameters>... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

// --- Moving and adding

template <class Body>
__global__ void ForEachKernel(std::int64_t elements, Body body) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    body(i);
  }
}
template <class Body>
void ForEach(std::int64_t elements, cudaStream_t stream, Body body) {
  if (elements > 0) Start(ForEachKernel<Body>, dim3(Blocks(elements)), stream, elements, body);
}

// One block for each row.
template <class Body>
__global__ void ForRowsKernel(Body body) {
  body(std::int64_t{blockIdx.x});
}
template <class Body>
void ForRows(std::int64_t rows, cudaStream_t stream, Body body) {
  if (rows > 0) Start(ForRowsKernel<Body>, dim3(unsigned(rows)), stream, body);
}

// to[c] += the sum over rows of of(row, c): 32 columns a block, the rows among its warps.
template <class S, class Of>
__global__ void AddColumnsKernel(std::int64_t rows, std::int64_t cols, S* to, Of of) {
  __shared__ S sums[kThreads / kWarp][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + lane;
  S sum = 0;
  if (c < cols) {
    for (std::int64_t r = warp; r < rows; r += kThreads / kWarp) sum += of(r, c);
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || c >= cols) return;
  for (int w = 1; w < kThreads / kWarp; ++w) sum += sums[w][lane];
  to[c] += sum;
}
template <class S, class Of>
void AddColumnsOf(std::int64_t rows, std::int64_t cols, S* to, cudaStream_t stream, Of of) {
  if (rows == 0 || cols == 0) return;
  Start(AddColumnsKernel<S, Of>, dim3(unsigned((cols + kWarp - 1) / kWarp)), stream, rows, cols, to,
        of);
}

template <class T, class S>
void FillElements(View view, S value, cudaStream_t stream) {
  T* to = Data<T>(view);
  ForEach(view.size(), stream, [=] __device__(std::int64_t i) { to[i] = To<T>(value); });
}

template <class V, class S>
void Launch(const compute::Fill& op, cudaStream_t stream) {
  op.to.element == Element::kValue ? FillElements<V>(op.to, S(op.value), stream)
                                   : FillElements<S>(op.to, S(op.value), stream);
}

template <class V, class S>
void Launch(const compute::Copy& op, cudaStream_t stream) {
  cudaMemcpyAsync(op.to.data, op.from.data, std::size_t(op.from.bytes()), cudaMemcpyDeviceToDevice,
                  stream);
}

template <class T>
void AddBlock(const compute::CopyBlock& op, cudaStream_t stream) {
  const T* from = Data<T>(op.from);
  T* to = Data<T>(op.to);
  const std::int64_t cols = op.cols, from_stride = op.from_stride, to_stride = op.to_stride;
  ForEach(op.rows * cols, stream, [=] __device__(std::int64_t i) {
    const std::int64_t r = i / cols, c = i % cols;
    T& sum = to[r * to_stride + c];
    sum = To<T>(Sum(sum) + Sum(from[r * from_stride + c]));
  });
}

template <class V, class S>
void Launch(const compute::CopyBlock& op, cudaStream_t stream) {
  if (op.add) {
    op.to.element == Element::kValue ? AddBlock<V>(op, stream) : AddBlock<S>(op, stream);
    return;
  }
  const auto width = std::size_t(op.from.width);
  cudaMemcpy2DAsync(op.to.data, std::size_t(op.to_stride) * width, op.from.data,
                    std::size_t(op.from_stride) * width, std::size_t(op.cols) * width,
                    std::size_t(op.rows), cudaMemcpyDeviceToDevice, stream);
}

template <class T>
void AddElements(const compute::Add& op, cudaStream_t stream) {
  const T* from = Data<T>(op.from);
  T* to = Data<T>(op.to);
  ForEach(op.to.size(), stream,
          [=] __device__(std::int64_t i) { to[i] = To<T>(Sum(to[i]) + Sum(from[i])); });
}

template <class V, class S>
void Launch(const compute::Add& op, cudaStream_t stream) {
  op.to.element == Element::kValue ? AddElements<V>(op, stream) : AddElements<S>(op, stream);
}

template <class V, class S>
void Launch(const compute::AddBias& op, cudaStream_t stream) {
  const V* bias = Data<V>(op.bias);
  V* x = Data<V>(op.x);
  const std::int64_t cols = op.x.cols;
  ForEach(op.x.size(), stream,
          [=] __device__(std::int64_t i) { x[i] = To<V>(Sum(x[i]) + Sum(bias[i % cols])); });
}

template <class V, class S>
void Launch(const compute::AddColumns& op, cudaStream_t stream) {
  const V* from = Data<V>(op.from);
  const std::int64_t cols = op.from.cols;
  AddColumnsOf(op.from.rows, cols, Data<S>(op.to), stream,
               [=] __device__(std::int64_t r, std::int64_t c) { return Sum(from[r * cols + c]); });
}

// --- FP8

// Of what is not negative, whose bits are in the order of the numbers.
__device__ inline void RaiseTo(float* to, float value) {
  atomicMax(reinterpret_cast<int*>(to), __float_as_int(value));
}
__device__ inline void RaiseTo(double* to, double value) {
  using Integer = unsigned long long;  // as atomicMax has it
  atomicMax(reinterpret_cast<Integer*>(to), Integer(__double_as_longlong(value)));
}

template <class V, class S>
void Launch(const compute::RaiseFp8Scale& op, cudaStream_t stream) {
  constexpr std::int64_t kEach = 16, kMost = 1024;  // elements of a thread, where they are few
  const V* x = Data<V>(op.x);
  S* scale = Data<S>(op.scale);
  const std::int64_t elements = op.x.size();
  const std::int64_t wanted = (elements + kThreads * kEach - 1) / (kThreads * kEach);
  const std::int64_t blocks = wanted < kMost ? wanted : kMost;
  const S format = op.format == Element::kFp8 ? S(448) : S(57344);  // as runtime/fp8
  ForRows(blocks, stream, [=] __device__(std::int64_t block) {
    S largest = 0;
    for (std::int64_t i = block * kThreads + threadIdx.x; i < elements; i += blocks * kThreads) {
      const S value = Sum(x[i]), size = value < 0 ? -value : value;
      largest = size > largest ? size : largest;
    }
    largest = OverBlock<true>(largest);
    if (threadIdx.x == 0) RaiseTo(scale, largest / format);
  });
}

__device__ inline __nv_fp8_storage_t Fp8(float x, __nv_fp8_interpretation_t format) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, format);
}
__device__ inline __nv_fp8_storage_t Fp8(double x, __nv_fp8_interpretation_t format) {
  return __nv_cvt_double_to_fp8(x, __NV_SATFINITE, format);
}

// Of a scale of 0 all are zeros, or so small that they become zeros, or no numbers.
template <class S>
__device__ __nv_fp8_storage_t Rounded(S x, S scale, __nv_fp8_interpretation_t format) {
  return Fp8(scale > 0 ? x / scale : x, format);
}

// A square of a warp's width at a time, so that reads and writes are of neighbours.
template <class V, class S>
__global__ void RoundTransposedKernel(const V* x, std::int64_t rows, std::int64_t cols,
                                      const S* scale, __nv_fp8_interpretation_t format,
                                      __nv_fp8_storage_t* to, std::int64_t to_cols) {
  __shared__ __nv_fp8_storage_t square[kWarp][kWarp + 1];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kWarp,
                     first_col = std::int64_t{blockIdx.x} * kWarp;
  const S by = *scale;
  for (int k = warp; k < kWarp; k += kThreads / kWarp) {
    const std::int64_t r = first_row + k, c = first_col + lane;
    const bool there = r < rows && c < cols;
    square[k][lane] = there ? Rounded(S(Sum(x[r * cols + c])), by, format) : __nv_fp8_storage_t{0};
  }
  __syncthreads();
  for (int k = warp; k < kWarp; k += kThreads / kWarp) {
    const std::int64_t r = first_col + k, c = first_row + lane;
    if (r < cols && c < to_cols) to[r * to_cols + c] = square[lane][k];
  }
}

template <class V, class S>
void Launch(const compute::RoundToFp8& op, cudaStream_t stream) {
  const V* x = Data<V>(op.x);
  const S* scale = Data<S>(op.scale);
  auto* to = Data<__nv_fp8_storage_t>(op.to);
  const auto format = op.to.element == Element::kFp8 ? __NV_E4M3 : __NV_E5M2;
  const std::int64_t cols = op.x.cols, to_cols = op.to.cols;
  if (op.to.empty()) return;
  if (op.transposed) {
    const auto squares = [](std::int64_t n) { return unsigned((n + kWarp - 1) / kWarp); };
    Start(RoundTransposedKernel<V, S>, dim3(squares(cols), squares(to_cols)), stream, x, op.x.rows,
          cols, scale, format, to, to_cols);
    return;
  }
  ForEach(op.to.size(), stream, [=] __device__(std::int64_t i) {
    const std::int64_t r = i / to_cols, c = i % to_cols;
    to[i] = c < cols ? Rounded(S(Sum(x[r * cols + c])), *scale, format) : __nv_fp8_storage_t{0};
  });
}

// --- The rest of a layer

template <class V, class S>
void Launch(const compute::RmsNorm& op, cudaStream_t stream) {
  const V *x = Data<V>(op.x), *gain = Data<V>(op.gain);
  V* y = Data<V>(op.y);
  S* rstd = Data<S>(op.rstd);
  const std::int64_t cols = op.x.cols;
  ForRows(op.x.rows, stream, [=] __device__(std::int64_t r) {
    S squares = 0;
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
      const S value = Sum(x[r * cols + c]);
      squares += value * value;
    }
    squares = OverBlock<false>(squares);
    const S scale = 1 / SquareRoot(squares / S(cols) + S(kNormEpsilon));
    if (threadIdx.x == 0) rstd[r] = scale;
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
      y[r * cols + c] = To<V>(Sum(x[r * cols + c]) * scale * Sum(gain[c]));
    }
  });
}

template <class V, class S>
void Launch(const compute::RmsNormGradient& op, cudaStream_t stream) {
  const V *dy = Data<V>(op.dy), *x = Data<V>(op.x), *gain = Data<V>(op.gain);
  const S* rstd = Data<S>(op.rstd);
  V* dx = Data<V>(op.dx);
  const std::int64_t cols = op.x.cols;
  ForRows(op.x.rows, stream, [=] __device__(std::int64_t r) {
    S along = 0;  // how much of the gradient only changes the length of x
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
      const std::int64_t i = r * cols + c;
      along += Sum(dy[i]) * Sum(gain[c]) * Sum(x[i]);
    }
    const S scale = rstd[r];
    along = OverBlock<false>(along) * scale * scale / S(cols);
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
      const std::int64_t i = r * cols + c;
      dx[i] = To<V>(Sum(dx[i]) + scale * (Sum(dy[i]) * Sum(gain[c]) - Sum(x[i]) * along));
    }
  });
  AddColumnsOf(op.x.rows, cols, Data<S>(op.dgain), stream,
               [=] __device__(std::int64_t r, std::int64_t c) {
                 return Sum(dy[r * cols + c]) * Sum(x[r * cols + c]) * rstd[r];
               });
}

template <class V, class S>
void Launch(const compute::LayerNorm& op, cudaStream_t stream) {
  const V *x = Data<V>(op.x), *gain = Data<V>(op.gain), *bias = Data<V>(op.bias);
  V* y = Data<V>(op.y);
  S *means = Data<S>(op.mean), *rstd = Data<S>(op.rstd);
  const std::int64_t cols = op.x.cols;
  ForRows(op.x.rows, stream, [=] __device__(std::int64_t r) {
    S mean = 0, squares = 0;
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) mean += Sum(x[r * cols + c]);
    mean = OverBlock<false>(mean) / S(cols);
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
      const S off = Sum(x[r * cols + c]) - mean;
      squares += off * off;
    }
    const S scale = 1 / SquareRoot(OverBlock<false>(squares) / S(cols) + S(kNormEpsilon));
    if (threadIdx.x == 0) {
      means[r] = mean;
      rstd[r] = scale;
    }
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
      const S normed = (Sum(x[r * cols + c]) - mean) * scale;
      y[r * cols + c] = To<V>(normed * Sum(gain[c]) + Sum(bias[c]));
    }
  });
}

template <class V, class S>
void Launch(const compute::LayerNormGradient& op, cudaStream_t stream) {
  const V *dy = Data<V>(op.dy), *x = Data<V>(op.x), *gain = Data<V>(op.gain);
  const S *means = Data<S>(op.mean), *rstd = Data<S>(op.rstd);
  V* dx = Data<V>(op.dx);
  const std::int64_t cols = op.x.cols;
  ForRows(op.x.rows, stream, [=] __device__(std::int64_t r) {
    const S mean = means[r], scale = rstd[r];
    // How much of the gradient only moves x as a whole, and how much only stretches it.
    S moved = 0, stretched = 0;
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
      const std::int64_t i = r * cols + c;
      const S up = Sum(dy[i]) * Sum(gain[c]);
      moved += up;
      stretched += up * (Sum(x[i]) - mean) * scale;
    }
    moved = OverBlock<false>(moved) / S(cols);
    stretched = OverBlock<false>(stretched) / S(cols);
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
      const std::int64_t i = r * cols + c;
      const S normed = (Sum(x[i]) - mean) * scale;
      dx[i] = To<V>(Sum(dx[i]) + scale * (Sum(dy[i]) * Sum(gain[c]) - moved - normed * stretched));
    }
  });
  AddColumnsOf(op.x.rows, cols, Data<S>(op.dgain), stream,
               [=] __device__(std::int64_t r, std::int64_t c) {
                 const std::int64_t i = r * cols + c;
                 return Sum(dy[i]) * (Sum(x[i]) - means[r]) * rstd[r];
               });
  AddColumnsOf(op.x.rows, cols, Data<S>(op.dbias), stream,
               [=] __device__(std::int64_t r, std::int64_t c) { return Sum(dy[r * cols + c]); });
}

// One thread for a row and pair, for all heads: the angle is computed once.
template <class V, class S>
void Launch(const compute::Rope& op, cudaStream_t stream) {
  V* x = Data<V>(op.x);
  const auto* positions = Data<std::int32_t>(op.positions);
  const std::int64_t cols = op.x.cols, size = op.head_size, half = size / 2,
                     tokens = op.positions.size();
  const double direction = op.back ? -1 : 1;
  ForEach(op.x.rows * half, stream, [=] __device__(std::int64_t index) {
    const std::int64_t r = index / half, i = index % half;
    const double angle =
        double(positions[r % tokens]) * pow(kRopeBase, -2.0 * double(i) / double(size));
    const S cosine = S(cos(angle)), sine = S(direction * sin(angle));
    for (V* head = x + r * cols; head < x + (r + 1) * cols; head += size) {
      const S a = Sum(head[i]), b = Sum(head[i + half]);
      head[i] = To<V>(a * cosine - b * sine);
      head[i + half] = To<V>(a * sine + b * cosine);
    }
  });
}

template <class S>
__device__ S Activated(Activation activation, S x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + Exp(-x));
    case Activation::kGelu:
      return x / 2 * (1 + Erf(x * S(M_SQRT1_2)));
    case Activation::kRelu:
      return x > 0 ? x : S(0);
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : S(0);
  }
  return 0;
}

template <class S>
__device__ S Slope(Activation activation, S x) {
  switch (activation) {
    case Activation::kSilu: {
      const S sigmoid = 1 / (1 + Exp(-x));
      return sigmoid * (1 + x * (1 - sigmoid));
    }
    case Activation::kGelu:
      return (1 + Erf(x * S(M_SQRT1_2))) / 2 + x * Exp(-x * x / 2) * S(M_2_SQRTPI * M_SQRT1_2 / 2);
    case Activation::kRelu:
      return x > 0 ? S(1) : S(0);
    case Activation::kSquaredRelu:
      return x > 0 ? 2 * x : S(0);
  }
  return 0;
}

template <class V, class S>
void Launch(const compute::Activate& op, cudaStream_t stream) {
  const V* x = Data<V>(op.x);
  V* y = Data<V>(op.y);
  const std::int64_t width = op.y.cols, cols = op.x.cols;
  const Activation activation = op.activation;
  const bool gated = op.gated;
  ForEach(op.y.size(), stream, [=] __device__(std::int64_t i) {
    const std::int64_t in = i / width * cols + i % width;
    const S value = Activated(activation, S(Sum(x[in])));
    y[i] = To<V>(gated ? value * Sum(x[in + width]) : value);
  });
}

template <class V, class S>
void Launch(const compute::ActivationGradient& op, cudaStream_t stream) {
  const V *dy = Data<V>(op.dy), *x = Data<V>(op.x);
  V* dx = Data<V>(op.dx);
  const std::int64_t width = op.dy.cols, cols = op.x.cols;
  const Activation activation = op.activation;
  const bool gated = op.gated;
  ForEach(op.dy.size(), stream, [=] __device__(std::int64_t i) {
    const std::int64_t in = i / width * cols + i % width;
    const S up = Sum(dy[i]), value = Sum(x[in]);
    dx[in] = To<V>(up * Slope(activation, value) * (gated ? S(Sum(x[in + width])) : S(1)));
    if (gated) dx[in + width] = To<V>(up * Activated(activation, value));
  });
}

// --- Attention.  Eight neighbouring threads share a query (or, for dk and dv, a key): each has
// every eighth element of its head, and a dot product is three exchanges in the warp.  A block
// takes kTile keys (queries) at a time into shared memory, from which all of its queries (keys)
// read them.

constexpr int kShare = 8;
constexpr int kOwners = kThreads / kShare;  // queries or keys that a block works for
constexpr int kTile = 16;

template <class S>
__device__ S OverShare(S value) {
  for (int lane = kShare / 2; lane > 0; lane /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, lane);
  }
  return value;
}

struct AttentionShape {
  std::int64_t queries, keys, head_size;
  int heads, groups;
  double scale;
  std::int64_t window;  // 0: none
};

// By the positions of both.
__device__ inline bool Sees(const AttentionShape& shape, std::int32_t query, std::int32_t key) {
  return key <= query && (shape.window == 0 || std::int64_t{query} - key < shape.window);
}

// A thread's elements of a row of a head; beyond the head 0.
template <int kEach, class S, class V>
__device__ void LoadOwn(const V* row, std::int64_t head_size, bool there, S (&own)[kEach]) {
  for (int e = 0; e < kEach; ++e) {
    const int at = threadIdx.x % kShare + e * kShare;
    own[e] = there && at < head_size ? S(Sum(row[at])) : S(0);
  }
}

// Rows [first, first + kTile) of a head of two matrices into shared memory, as kEach * kShare wide.
template <int kEach, class S, class V>
__device__ void LoadTile(const V* a, std::int64_t a_stride, const V* b, std::int64_t b_stride,
                         std::int64_t first, std::int64_t rows, std::int64_t head_size, S* tile_a,
                         S* tile_b) {
  constexpr int kWidth = kEach * kShare;
  for (int i = threadIdx.x; i < kTile * kWidth; i += kThreads) {
    const std::int64_t row = first + i / kWidth;
    const int at = i % kWidth;
    const bool there = row < rows && at < head_size;
    tile_a[i] = there ? S(Sum(a[row * a_stride + at])) : S(0);
    tile_b[i] = there ? S(Sum(b[row * b_stride + at])) : S(0);
  }
}

template <int kEach, class S>
__device__ S DotWithTile(const S (&own)[kEach], const S* tile_row) {
  S dot = 0;
  for (int e = 0; e < kEach; ++e) dot += own[e] * tile_row[threadIdx.x % kShare + e * kShare];
  return OverShare(dot);
}

template <int kEach, class S>
__device__ void AddTile(S weight, const S* tile_row, S (&own)[kEach]) {
  for (int e = 0; e < kEach; ++e) own[e] += weight * tile_row[threadIdx.x % kShare + e * kShare];
}

// Grid: blocks of queries, heads, sequences.
template <int kEach, class V, class S>
__global__ void __launch_bounds__(kThreads)
    AttendKernel(AttentionShape shape, const V* q, const V* k, const V* v,
                 const std::int32_t* query_positions, const std::int32_t* key_positions, S* output,
                 S* maximum, S* sum) {
  __shared__ S keys[kTile * kEach * kShare], values[kTile * kEach * kShare];
  const std::int64_t e = shape.head_size, h = blockIdx.y, s = blockIdx.z;
  const std::int64_t group = h * shape.groups / shape.heads;
  const std::int64_t q_stride = shape.heads * e, k_stride = shape.groups * e;
  const std::int64_t i = std::int64_t{blockIdx.x} * kOwners + threadIdx.x / kShare;
  const bool there = i < shape.queries;
  const std::int64_t row = s * shape.queries + i, state = row * shape.heads + h;
  const std::int32_t position = there ? query_positions[i] : -1;
  S own[kEach], out[kEach];
  LoadOwn(q + row * q_stride + h * e, e, there, own);
  LoadOwn(output + row * q_stride + h * e, e, there, out);
  S highest = there ? maximum[state] : S(0), total = there ? sum[state] : S(0);
  const std::int64_t of_sequence = s * shape.keys * k_stride + group * e;
  for (std::int64_t first = 0; first < shape.keys; first += kTile) {
    // Tiles of which nobody here sees a key are passed over.
    bool sees = false;
    for (int j = 0; j < kTile && first + j < shape.keys; ++j) {
      sees = sees || Sees(shape, position, key_positions[first + j]);
    }
    if (__syncthreads_or(sees ? 1 : 0) == 0) continue;
    LoadTile<kEach>(k + of_sequence, k_stride, v + of_sequence, k_stride, first, shape.keys, e,
                    keys, values);
    __syncthreads();
    for (int j = 0; j < kTile && first + j < shape.keys; ++j) {
      const S score = S(shape.scale) * DotWithTile(own, keys + j * kEach * kShare);
      // All threads of a query alike.
      if (!Sees(shape, position, key_positions[first + j])) continue;
      if (score > highest) {
        const S shrink = Exp(highest - score);  // 0 for the first score
        for (int c = 0; c < kEach; ++c) out[c] *= shrink;
        total *= shrink;
        highest = score;
      }
      const S weight = Exp(score - highest);
      total += weight;
      AddTile(weight, values + j * kEach * kShare, out);
    }
  }
  if (!there) return;
  for (int c = 0; c < kEach; ++c) {
    const int at = threadIdx.x % kShare + c * kShare;
    if (at < e) output[row * q_stride + h * e + at] = out[c];
  }
  if (threadIdx.x % kShare == 0) {
    maximum[state] = highest;
    sum[state] = total;
  }
}

// Grid: blocks of queries, heads, sequences.
template <int kEach, class V, class S>
__global__ void __launch_bounds__(kThreads)
    QueryGradientKernel(AttentionShape shape, const V* q, const V* k, const V* v,
                        const std::int32_t* query_positions, const std::int32_t* key_positions,
                        const S* log_sum, const S* row_sums, const V* doutput, V* dq) {
  __shared__ S keys[kTile * kEach * kShare], values[kTile * kEach * kShare];
  const std::int64_t e = shape.head_size, h = blockIdx.y, s = blockIdx.z;
  const std::int64_t group = h * shape.groups / shape.heads;
  const std::int64_t q_stride = shape.heads * e, k_stride = shape.groups * e;
  const std::int64_t i = std::int64_t{blockIdx.x} * kOwners + threadIdx.x / kShare;
  const bool there = i < shape.queries;
  const std::int64_t row = s * shape.queries + i;
  const std::int32_t position = there ? query_positions[i] : -1;
  S own[kEach], up[kEach], gradient[kEach] = {};
  LoadOwn(q + row * q_stride + h * e, e, there, own);
  LoadOwn(doutput + row * q_stride + h * e, e, there, up);
  const S log_total = there ? log_sum[row * shape.heads + h] : S(0);
  const S along = there ? row_sums[row * shape.heads + h] : S(0);
  const std::int64_t of_sequence = s * shape.keys * k_stride + group * e;
  for (std::int64_t first = 0; first < shape.keys; first += kTile) {
    bool sees = false;
    for (int j = 0; j < kTile && first + j < shape.keys; ++j) {
      sees = sees || Sees(shape, position, key_positions[first + j]);
    }
    if (__syncthreads_or(sees ? 1 : 0) == 0) continue;
    LoadTile<kEach>(k + of_sequence, k_stride, v + of_sequence, k_stride, first, shape.keys, e,
                    keys, values);
    __syncthreads();
    for (int j = 0; j < kTile && first + j < shape.keys; ++j) {
      const S* key = keys + j * kEach * kShare;
      const S score = S(shape.scale) * DotWithTile(own, key);
      const S dweight = DotWithTile(up, values + j * kEach * kShare);
      if (!Sees(shape, position, key_positions[first + j])) continue;
      const S weight = Exp(score - log_total);
      AddTile(weight * (dweight - along) * S(shape.scale), key, gradient);
    }
  }
  if (!there) return;
  for (int c = 0; c < kEach; ++c) {
    const int at = threadIdx.x % kShare + c * kShare;
    if (at >= e) continue;
    V& to = dq[row * q_stride + h * e + at];
    to = To<V>(Sum(to) + gradient[c]);
  }
}

// Grid: blocks of keys, KV heads, sequences.
template <int kEach, class V, class S>
__global__ void __launch_bounds__(kThreads)
    KeyGradientKernel(AttentionShape shape, const V* q, const V* k, const V* v,
                      const std::int32_t* query_positions, const std::int32_t* key_positions,
                      const S* log_sum, const S* row_sums, const V* doutput, V* dk, V* dv) {
  __shared__ S queries[kTile * kEach * kShare], ups[kTile * kEach * kShare];
  const std::int64_t e = shape.head_size, group = blockIdx.y, s = blockIdx.z;
  const std::int64_t q_stride = shape.heads * e, k_stride = shape.groups * e;
  const std::int64_t j = std::int64_t{blockIdx.x} * kOwners + threadIdx.x / kShare;
  const bool there = j < shape.keys;
  const std::int64_t row = s * shape.keys + j;
  const std::int32_t position = there ? key_positions[j] : INT32_MAX;
  S key[kEach], value[kEach], of_key[kEach] = {}, of_value[kEach] = {};
  LoadOwn(k + row * k_stride + group * e, e, there, key);
  LoadOwn(v + row * k_stride + group * e, e, there, value);
  for (int h = 0; h < shape.heads; ++h) {
    if (std::int64_t{h} * shape.groups / shape.heads != group) continue;
    const std::int64_t of_sequence = s * shape.queries * q_stride + h * e;
    for (std::int64_t first = 0; first < shape.queries; first += kTile) {
      bool seen = false;
      for (int i = 0; i < kTile && first + i < shape.queries; ++i) {
        seen = seen || Sees(shape, query_positions[first + i], position);
      }
      if (__syncthreads_or(seen ? 1 : 0) == 0) continue;
      LoadTile<kEach>(q + of_sequence, q_stride, doutput + of_sequence, q_stride, first,
                      shape.queries, e, queries, ups);
      __syncthreads();
      for (int i = 0; i < kTile && first + i < shape.queries; ++i) {
        const S *query = queries + i * kEach * kShare, *up = ups + i * kEach * kShare;
        const S score = S(shape.scale) * DotWithTile(key, query);
        const S dweight = DotWithTile(value, up);
        if (!Sees(shape, query_positions[first + i], position)) continue;
        const std::int64_t state = (s * shape.queries + first + i) * shape.heads + h;
        const S weight = Exp(score - log_sum[state]);
        AddTile(weight * (dweight - row_sums[state]) * S(shape.scale), query, of_key);
        AddTile(weight, up, of_value);
      }
    }
  }
  if (!there) return;
  for (int c = 0; c < kEach; ++c) {
    const int at = threadIdx.x % kShare + c * kShare;
    if (at >= e) continue;
    const std::int64_t to = row * k_stride + group * e + at;
    dk[to] = To<V>(Sum(dk[to]) + of_key[c]);
    dv[to] = To<V>(Sum(dv[to]) + of_value[c]);
  }
}

template <class Op>
AttentionShape ShapeOf(const Op& op) {
  return {.queries = op.query_positions.size(),
          .keys = op.key_positions.size(),
          .head_size = op.layout.head_size,
          .heads = op.layout.heads,
          .groups = op.layout.groups,
          .scale = op.layout.scale,
          .window = op.layout.window};
}

dim3 AttentionGrid(std::int64_t owners, int heads, std::int64_t sequences) {
  return {unsigned((owners + kOwners - 1) / kOwners), unsigned(heads), unsigned(sequences)};
}

// Calls launch with the elements of a head that each thread has, as a constant.
template <class Launch>
cudaError_t ForHeadSize(std::int64_t head_size, const Launch& launch) {
  if (head_size <= 8 * kShare) {
    launch(std::integral_constant<int, 8>());
  } else if (head_size <= 16 * kShare) {
    launch(std::integral_constant<int, 16>());
  } else if (head_size <= 24 * kShare) {  // kMostGpuHeadSize: of fp64 two tiles fill shared memory
    launch(std::integral_constant<int, 24>());
  } else {
    return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

template <class V, class S>
cudaError_t Launch(const compute::AttendBlock& op, cudaStream_t stream) {
  return ForHeadSize(op.layout.head_size, [&](auto each) {
    Start(AttendKernel<each(), V, S>,
          AttentionGrid(op.query_positions.size(), op.layout.heads, op.layout.sequences), stream,
          ShapeOf(op), Data<V>(op.q), Data<V>(op.k), Data<V>(op.v),
          Data<std::int32_t>(op.query_positions), Data<std::int32_t>(op.key_positions),
          Data<S>(op.output), Data<S>(op.maximum), Data<S>(op.sum));
  });
}

template <class V, class S>
void Launch(const compute::FinishAttention& op, cudaStream_t stream) {
  const S *accumulated = Data<S>(op.accumulated), *maximum = Data<S>(op.maximum),
          *sum = Data<S>(op.sum);
  V* output = Data<V>(op.output);
  S* log_sum = Data<S>(op.log_sum);
  const std::int64_t e = op.layout.head_size;
  ForEach(op.output.size(), stream, [=] __device__(std::int64_t i) {
    output[i] = To<V>(accumulated[i] / sum[i / e]);
    if (i % e == 0) log_sum[i / e] = maximum[i / e] + Log(sum[i / e]);
  });
}

template <class V, class S>
void Launch(const compute::AttentionRowSums& op, cudaStream_t stream) {
  const V *output = Data<V>(op.output), *doutput = Data<V>(op.doutput);
  S* sums = Data<S>(op.sums);
  const std::int64_t e = op.layout.head_size;
  // Rows are heads of rows here, since a row is its heads one after the other.
  ForEach(op.sums.size() * kShare, stream, [=] __device__(std::int64_t i) {
    const std::int64_t head = i / kShare;
    S sum = 0;
    for (std::int64_t c = i % kShare; c < e; c += kShare) {
      sum += Sum(output[head * e + c]) * Sum(doutput[head * e + c]);
    }
    // The threads of a share alone: in the last round a warp may not be whole.
    const unsigned share = 0xffU << (threadIdx.x % kWarp / kShare * kShare);
    for (int lane = kShare / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(share, sum, lane);
    if (i % kShare == 0) sums[head] = sum;
  });
}

template <class V, class S>
cudaError_t Launch(const compute::AttentionGradient& op, cudaStream_t stream) {
  return ForHeadSize(op.layout.head_size, [&](auto each) {
    Start(QueryGradientKernel<each(), V, S>,
          AttentionGrid(op.query_positions.size(), op.layout.heads, op.layout.sequences), stream,
          ShapeOf(op), Data<V>(op.q), Data<V>(op.k), Data<V>(op.v),
          Data<std::int32_t>(op.query_positions), Data<std::int32_t>(op.key_positions),
          Data<S>(op.log_sum), Data<S>(op.row_sums), Data<V>(op.doutput), Data<V>(op.dq));
    Start(KeyGradientKernel<each(), V, S>,
          AttentionGrid(op.key_positions.size(), op.layout.groups, op.layout.sequences), stream,
          ShapeOf(op), Data<V>(op.q), Data<V>(op.k), Data<V>(op.v),
          Data<std::int32_t>(op.query_positions), Data<std::int32_t>(op.key_positions),
          Data<S>(op.log_sum), Data<S>(op.row_sums), Data<V>(op.doutput), Data<V>(op.dk),
          Data<V>(op.dv));
  });
}

// --- Embedding and cross-entropy

template <class T, class S>
void EmbedRows(const compute::Embed& op, cudaStream_t stream) {
  const T* table = Data<T>(op.table);
  const auto* ids = Data<std::int32_t>(op.ids);
  T* y = Data<T>(op.y);
  const std::int64_t cols = op.y.cols;
  ForEach(op.y.size(), stream, [=] __device__(std::int64_t i) {
    const std::int64_t id = ids[i / cols];
    y[i] = id < 0 ? To<T>(S(0)) : table[id * cols + i % cols];
  });
}

template <class V, class S>
void Launch(const compute::Embed& op, cudaStream_t stream) {
  op.y.element == Element::kValue ? EmbedRows<V, S>(op, stream) : EmbedRows<S, S>(op, stream);
}

// The first row of a token adds those of all: in one order, and nobody else writes there.
template <class V, class S>
void Launch(const compute::EmbeddingGradient& op, cudaStream_t stream) {
  const V* dy = Data<V>(op.dy);
  const auto* ids = Data<std::int32_t>(op.ids);
  S* dtable = Data<S>(op.dtable);
  const std::int64_t rows = op.dy.rows, cols = op.dy.cols;
  ForRows(rows, stream, [=] __device__(std::int64_t r) {
    const std::int32_t id = ids[r];
    bool earlier = id < 0;
    for (std::int64_t other = threadIdx.x; other < r; other += kThreads) {
      earlier = earlier || ids[other] == id;
    }
    if (__syncthreads_or(earlier ? 1 : 0) != 0) return;
    for (std::int64_t other = r; other < rows; ++other) {
      if (ids[other] != id) continue;
      for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
        dtable[id * cols + c] += Sum(dy[other * cols + c]);
      }
    }
  });
}

template <class V, class S>
void Launch(const compute::RowMaximum& op, cudaStream_t stream) {
  const V* logits = Data<V>(op.logits);
  S* maximum = Data<S>(op.maximum);
  const std::int64_t cols = op.logits.cols, words = op.words;
  ForRows(op.logits.rows, stream, [=] __device__(std::int64_t r) {
    S highest = MinusInfinity<S>();
    for (std::int64_t c = threadIdx.x; c < words; c += kThreads) {
      const S logit = Sum(logits[r * cols + c]);
      highest = logit > highest ? logit : highest;
    }
    highest = OverBlock<true>(highest);
    if (threadIdx.x == 0) maximum[r] = highest;
  });
}

template <class V, class S>
void Launch(const compute::CrossEntropySums& op, cudaStream_t stream) {
  const V* logits = Data<V>(op.logits);
  const auto* labels = Data<std::int32_t>(op.labels);
  const S* maximum = Data<S>(op.maximum);
  S *sum = Data<S>(op.sum), *label_logit = Data<S>(op.label_logit);
  const std::int64_t cols = op.logits.cols, words = op.words;
  ForRows(op.logits.rows, stream, [=] __device__(std::int64_t r) {
    const S highest = maximum[r];
    S total = 0;
    for (std::int64_t c = threadIdx.x; c < words; c += kThreads) {
      total += Exp(Sum(logits[r * cols + c]) - highest);
    }
    total = OverBlock<false>(total);
    if (threadIdx.x != 0) return;
    sum[r] = total;
    label_logit[r] = labels[r] < 0 ? S(0) : S(Sum(logits[r * cols + labels[r]]));
  });
}

template <class V, class S>
void Launch(const compute::TokenLoss& op, cudaStream_t stream) {
  const S *maximum = Data<S>(op.maximum), *sum = Data<S>(op.sum),
          *label_logit = Data<S>(op.label_logit);
  S* loss = Data<S>(op.loss);
  ForEach(op.loss.size(), stream,
          [=] __device__(std::int64_t r) { loss[r] = maximum[r] + Log(sum[r]) - label_logit[r]; });
}

template <class V, class S>
void Launch(const compute::CrossEntropyGradient& op, cudaStream_t stream) {
  const V* logits = Data<V>(op.logits);
  const auto* labels = Data<std::int32_t>(op.labels);
  const S *maximum = Data<S>(op.maximum), *sum = Data<S>(op.sum);
  V* gradient = Data<V>(op.gradient);
  const std::int64_t cols = op.logits.cols, words = op.words;
  const S share = S(op.share);
  ForEach(op.logits.size(), stream, [=] __device__(std::int64_t i) {
    const std::int64_t r = i / cols, c = i % cols;
    S value = c < words ? share * Exp(Sum(logits[i]) - maximum[r]) / sum[r] : S(0);
    if (c == labels[r]) value -= share;
    gradient[i] = To<V>(value);
  });
}

// --- Experts.  A thread a row where rows are as short as a token's experts.

template <class V, class S>
void Launch(const compute::Route& op, cudaStream_t stream) {
  const V* logits = Data<V>(op.logits);
  auto* chosen = Data<std::int32_t>(op.chosen);
  S* weights = Data<S>(op.weights);
  const std::int64_t experts = op.logits.cols, topk = op.chosen.cols;
  const bool normalize = op.normalize;
  ForEach(op.logits.rows, stream, [=] __device__(std::int64_t r) {
    const V* row = logits + r * experts;
    std::int32_t* of_row = chosen + r * topk;
    S sum = 0;
    for (std::int64_t i = 0; i < topk; ++i) {
      // The next after the last in the order of falling logits and rising numbers.
      const std::int32_t last = i == 0 ? -1 : of_row[i - 1];
      std::int32_t best = -1;
      for (std::int32_t e = 0; e < experts; ++e) {
        const S logit = Sum(row[e]), before = last < 0 ? logit : Sum(row[last]);
        const bool after = last < 0 || logit < before || (logit == before && e > last);
        if (after && (best < 0 || logit > Sum(row[best]))) best = e;
      }
      of_row[i] = best;
      const S weight = Exp(Sum(row[best]) - Sum(row[of_row[0]]));
      weights[r * topk + i] = weight;
      sum += weight;
    }
    if (!normalize) {
      sum = 0;
      for (std::int64_t e = 0; e < experts; ++e) sum += Exp(Sum(row[e]) - Sum(row[of_row[0]]));
    }
    for (std::int64_t i = 0; i < topk; ++i) weights[r * topk + i] /= sum;
  });
}

template <class V, class S>
void Launch(const compute::RouteGradient& op, cudaStream_t stream) {
  const V* logits = Data<V>(op.logits);
  const auto* chosen = Data<std::int32_t>(op.chosen);
  const S* dweights = Data<S>(op.dweights);
  V* dlogits = Data<V>(op.dlogits);
  const std::int64_t experts = op.logits.cols, topk = op.chosen.cols;
  const bool normalize = op.normalize;
  ForEach(op.logits.rows, stream, [=] __device__(std::int64_t r) {
    const V* row = logits + r * experts;
    const std::int32_t* of_row = chosen + r * topk;
    const S* up = dweights + r * topk;
    const S largest = Sum(row[of_row[0]]);
    S sum = 0, mean = 0;
    for (std::int64_t i = 0; normalize && i < topk; ++i) sum += Exp(Sum(row[of_row[i]]) - largest);
    for (std::int64_t e = 0; !normalize && e < experts; ++e) sum += Exp(Sum(row[e]) - largest);
    for (std::int64_t i = 0; i < topk; ++i)
      mean += up[i] * Exp(Sum(row[of_row[i]]) - largest) / sum;
    for (std::int64_t e = 0; e < experts; ++e) {
      const S weight = normalize ? S(0) : Exp(Sum(row[e]) - largest) / sum;
      dlogits[r * experts + e] = To<V>(-weight * mean);
    }
    for (std::int64_t i = 0; i < topk; ++i) {
      const S weight = Exp(Sum(row[of_row[i]]) - largest) / sum;
      dlogits[r * experts + of_row[i]] = To<V>(weight * (up[i] - mean));
    }
  });
}

template <class V, class S>
void Launch(const compute::CombineRows& op, cudaStream_t stream) {
  const V* rows = Data<V>(op.rows);
  const auto* slots = Data<std::int32_t>(op.slots);
  const S* weights = op.weights.empty() ? nullptr : Data<S>(op.weights);
  V* y = Data<V>(op.y);
  const std::int64_t cols = op.y.cols, topk = op.slots.cols;
  ForEach(op.y.size(), stream, [=] __device__(std::int64_t i) {
    const std::int64_t r = i / cols, c = i % cols;
    S sum = 0;
    for (std::int64_t k = r * topk; k < (r + 1) * topk; ++k) {
      sum += (weights == nullptr ? S(1) : weights[k]) * Sum(rows[slots[k] * cols + c]);
    }
    y[i] = To<V>(sum);
  });
}

template <class V, class S>
void Launch(const compute::CombineRowsGradient& op, cudaStream_t stream) {
  const V *dy = Data<V>(op.dy), *rows = Data<V>(op.rows);
  const auto* slots = Data<std::int32_t>(op.slots);
  const S* weights = Data<S>(op.weights);
  V* drows = Data<V>(op.drows);
  S* dweights = Data<S>(op.dweights);
  const std::int64_t cols = op.dy.cols, topk = op.slots.cols;
  ForRows(op.slots.size(), stream, [=] __device__(std::int64_t k) {
    const V* up = dy + k / topk * cols;
    const std::int64_t row = std::int64_t{slots[k]} * cols;
    S along = 0;
    for (std::int64_t c = threadIdx.x; c < cols; c += kThreads) {
      along += Sum(up[c]) * Sum(rows[row + c]);
      drows[row + c] = To<V>(weights[k] * Sum(up[c]));
    }
    along = OverBlock<false>(along);
    if (threadIdx.x == 0) dweights[k] = along;
  });
}

// --- Optimizer

template <class V, class S>
void Launch(const compute::AdamUpdate& op, cudaStream_t stream) {
  const S* gradients = Data<S>(op.gradient);
  S *moment1 = Data<S>(op.moment1), *moment2 = Data<S>(op.moment2), *master = Data<S>(op.master);
  V* weights = Data<V>(op.weights);
  const S rate = S(op.rate), beta1 = S(op.beta1), beta2 = S(op.beta2), rest1 = S(1 - op.beta1),
          rest2 = S(1 - op.beta2), epsilon = S(op.epsilon), correction1 = S(op.correction1),
          correction2 = S(op.correction2);
  ForEach(op.gradient.size(), stream, [=] __device__(std::int64_t i) {
    const S gradient = gradients[i];
    const S m = beta1 * moment1[i] + rest1 * gradient;
    const S v = beta2 * moment2[i] + rest2 * gradient * gradient;
    moment1[i] = m;
    moment2[i] = v;
    const S old = master != nullptr ? master[i] : S(Sum(weights[i]));
    const S updated = old - rate * (m / correction1) / (SquareRoot(v / correction2) + epsilon);
    if (master != nullptr) master[i] = updated;
    weights[i] = To<V>(updated);
  });
}

template <class V, class S>
cudaError_t LaunchTyped(const Operation& operation, cudaStream_t stream) {
  const cudaError_t refused = std::visit(
      [&](const auto& op) {
        using Op = std::decay_t<decltype(op)>;
        if constexpr (std::is_same_v<Op, compute::Linear> ||
                      std::is_same_v<Op, compute::LinearInputGradient> ||
                      std::is_same_v<Op, compute::LinearWeightGradient>) {
          return cudaErrorInvalidValue;  // cuBLASLt's
        } else if constexpr (std::is_same_v<decltype(Launch<V, S>(op, stream)), cudaError_t>) {
          return Launch<V, S>(op, stream);
        } else {
          Launch<V, S>(op, stream);
          return cudaSuccess;
        }
      },
      operation);
  return refused != cudaSuccess ? refused : cudaGetLastError();
}

}  // namespace

cudaError_t LaunchKernel(const Operation& operation, ElementType type, cudaStream_t stream) {
  switch (type) {
    case ElementType::kFp64:
      return LaunchTyped<double, double>(operation, stream);
    case ElementType::kFp32:
      return LaunchTyped<float, float>(operation, stream);
    case ElementType::kBf16:
      return LaunchTyped<__nv_bfloat16, float>(operation, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace millwright
