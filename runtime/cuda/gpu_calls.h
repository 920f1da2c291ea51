// SPDX-License-Identifier: Apache-2.0
//
// The calls of the CUDA runtime, of cuBLAS and of NCCL that the GPU backend makes, as a table: the
// real one is in runtime/cuda/real_gpu, tests have one in host memory.
//
// Every call returns an empty Status where it succeeded, or what its library says; the table's
// names are those that messages use.  Handles are the libraries' own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "runtime/backend.h"
#include "runtime/operation.h"

namespace millwright {

// A collective or half a message of NCCL, in place where `from` and `to` say so.
struct NcclCall {
  enum class Kind : std::uint8_t {
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kBroadcast,
    kReduce,
    kSend,
    kReceive
  };
  Kind kind = Kind::kAllReduce;
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t count = 0;  // elements, as NCCL counts them: of a rank's part where parts are joined
  Element element = Element::kValue;
  Reduction reduction = Reduction::kSum;
  int peer = 0;  // the other rank, or the root
};

struct GpuCalls {
  using Status = std::string;
  using Handle = void*;
  using UniqueId = std::array<std::byte, 128>;  // NCCL_UNIQUE_ID_BYTES of nccl.h 2.28

  std::function<Status(int& count)> device_count;
  std::function<Status(int device, std::string& name)> device_name;
  std::function<Status(int device)> set_device;
  std::function<Status(void*& data, std::int64_t bytes)> allocate;
  std::function<Status(void* data)> release;
  // The host's buffer may be reused at once.
  std::function<Status(void* to, const void* from, std::int64_t bytes, Handle stream)> copy_in;
  // The stream is idle.
  std::function<Status(void* to, const void* from, std::int64_t bytes, Handle stream)> copy_out;
  std::function<Status(Handle& stream)> stream_create;
  std::function<Status(Handle stream)> stream_destroy;
  std::function<Status(Handle& event)> event_create;
  std::function<Status(Handle event)> event_destroy;
  std::function<Status(Handle event, Handle stream)> event_record;
  std::function<Status(Handle stream, Handle event)> stream_wait;
  std::function<Status(Handle event, bool& done)> event_query;
  std::function<Status(Handle start, Handle end, double& seconds)> event_elapsed;

  // What matrix products keep: a cuBLASLt handle, its workspace and the algorithms chosen.
  std::function<Status(Handle& products)> products_create;
  std::function<Status(Handle products)> products_destroy;
  std::function<Status(const Operation&, ElementType, Handle products, Handle stream)> launch;

  // Attention by a library, cuDNN: none of these where it was not found at build.  What it takes,
  // it is asked for; `name` has its version.  Each call is prepared before it is run, once a shape.
  std::function<bool(const AttentionLayout&, ElementType)> attention_takes;
  std::function<Status(Handle& attention, std::string& name)> attention_create;
  std::function<Status(Handle attention)> attention_destroy;
  std::function<Status(Handle attention, const AttentionCall&, std::int64_t& workspace)>
      attention_prepare;
  std::function<Status(Handle attention, const AttentionCall&, void* workspace, Handle stream)>
      attention_run;

  std::function<Status(UniqueId& id)> unique_id;
  std::function<Status(Handle& comm, int ranks, const UniqueId& id, int rank)> comm_init;
  // Every rank of `comm` calls it; a negative colour takes no part and gets no communicator.
  std::function<Status(Handle comm, int color, int key, Handle& part)> comm_split;
  std::function<Status(Handle comm, bool& ready)> comm_state;
  std::function<Status(Handle comm)> comm_destroy;
  std::function<Status(Handle comm)> comm_abort;
  std::function<Status()> group_start;
  std::function<Status()> group_end;
  std::function<Status(const NcclCall&, ElementType, Handle comm, Handle stream)> communicate;
};

// Larger heads of attention have no kernel.
inline constexpr int kMostGpuHeadSize = 192;

// CUDA's and NCCL's own; nothing where this program was built without CUDA.
std::optional<GpuCalls> RealGpuCalls();

}  // namespace millwright
