// SPDX-License-Identifier: Apache-2.0
//
// What runtime/cuda/kernels.cu needs of CUDA's header of this name, on a CPU: it comes first in the
// include path of kernels_test, so that the kernels themselves are compiled for the host.
//
// Blocks run one after the other.  The threads of a block are contexts that take turns: each runs
// until it waits for others, at a barrier or an exchange within its warp.  So a barrier that not
// all threads reach, and an exchange that a thread of the mask does not join, are found (they never
// end, which is an exception here).
#pragma once

#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice };

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream = nullptr;
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the thread that runs

namespace emulated_cuda {

constexpr unsigned kWarp = 32;

class Block {
 public:
  Block(unsigned threads, std::function<void()> kernel) : kernel_(std::move(kernel)) {
    threads_.resize(threads);
    for (unsigned i = 0; i < threads; ++i) {
      Thread& thread = threads_[i];
      thread.stack = std::make_unique_for_overwrite<std::byte[]>(kStack);
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.get();
      thread.context.uc_stack.ss_size = kStack;
      thread.context.uc_link = &main_;
      makecontext(&thread.context, &Block::Enter, 0);
    }
  }

  void Run() {
    current() = this;
    bool left = true;
    while (left) {
      left = false;
      const std::uint64_t before = progress_;
      for (unsigned i = 0; i < threads_.size(); ++i) {
        if (threads_[i].done) continue;
        left = true;
        running_ = i;
        threadIdx = dim3(i);
        swapcontext(&main_, &threads_[i].context);
        if (failure_) std::rethrow_exception(failure_);
      }
      if (left && progress_ == before) throw std::logic_error("threads wait for each other");
    }
  }

  // The or over a block's threads of what they bring.
  bool Barrier(bool value) {
    Meeting& meeting = barriers_[threads_[running_].barriers++];
    meeting.any = meeting.any || value;
    ++meeting.arrived;
    ++progress_;
    while (meeting.arrived < threads_.size()) Yield();
    return meeting.any;
  }

  // What the thread of the warp that differs by `lane` brings, among those of the mask.
  template <class T>
  T Exchange(unsigned mask, T value, unsigned lane) {
    const unsigned own = running_ % kWarp, warp = running_ / kWarp;
    std::deque<Meeting>& meetings = exchanges_[{warp, mask}];
    const std::uint64_t number = threads_[running_].exchanges[mask]++;
    if (meetings.size() <= number) meetings.resize(number + 1);
    Meeting& meeting = meetings[number];
    meeting.values[own] = double(value);
    ++meeting.arrived;
    ++progress_;
    const auto wanted = unsigned(__builtin_popcount(mask));
    while (meeting.arrived < wanted) Yield();
    return T(meeting.values[own ^ lane]);
  }

  static Block*& current() {
    static Block* block = nullptr;
    return block;
  }

 private:
  static constexpr std::size_t kStack = 64 << 10;
  struct Thread {
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack;
    bool done = false;
    std::uint64_t barriers = 0;
    std::map<unsigned, std::uint64_t> exchanges;
  };
  struct Meeting {
    unsigned arrived = 0;
    bool any = false;
    double values[kWarp] = {};
  };

  static void Enter() {
    Block& block = *current();
    const unsigned own = block.running_;
    try {
      block.kernel_();
    } catch (...) {
      block.failure_ = std::current_exception();
    }
    block.threads_[own].done = true;
    ++block.progress_;
  }
  void Yield() {
    const unsigned own = running_;
    swapcontext(&threads_[own].context, &main_);
  }

  std::function<void()> kernel_;
  ucontext_t main_{};
  std::vector<Thread> threads_;
  unsigned running_ = 0;
  std::uint64_t progress_ = 0;
  std::exception_ptr failure_;
  std::map<std::uint64_t, Meeting> barriers_;
  std::map<std::pair<unsigned, unsigned>, std::deque<Meeting>> exchanges_;  // by warp and mask
};

}  // namespace emulated_cuda

inline void __syncthreads() { emulated_cuda::Block::current()->Barrier(false); }
inline int __syncthreads_or(int value) {
  return emulated_cuda::Block::current()->Barrier(value != 0) ? 1 : 0;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane) {
  return emulated_cuda::Block::current()->Exchange(mask, value, unsigned(lane));
}

// Threads take turns nowhere but at their meetings.
template <class T>
T atomicMax(T* to, T value) {
  const T before = *to;
  if (value > before) *to = value;
  return before;
}
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }

template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Parameters... arguments) {
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = dim3(x, y, z);
        emulated_cuda::Block(blockDim.x, [&] { kernel(arguments...); }).Run();
      }
    }
  }
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                                     std::size_t from_pitch, std::size_t width, std::size_t height,
                                     cudaMemcpyKind, cudaStream_t) {
  for (std::size_t row = 0; row < height; ++row) {
    std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                static_cast<const std::byte*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}
