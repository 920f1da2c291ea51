// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/gpu_calls.h"

#if !MILLWRIGHT_HAS_CUDA

namespace millwright {

std::optional<GpuCalls> RealGpuCalls() { return std::nullopt; }

}  // namespace millwright

#else

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#if MILLWRIGHT_HAS_CUDNN
#include "runtime/cuda/cudnn_attention.h"
#endif
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/products.h"
#include "runtime/cuda/shared_library.h"

namespace millwright {
namespace {

using Status = GpuCalls::Status;
using Handle = GpuCalls::Handle;

Status Of(cudaError_t error) { return error == cudaSuccess ? "" : cudaGetErrorString(error); }

cudaStream_t CudaStream(Handle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(Handle event) { return static_cast<cudaEvent_t>(event); }
ncclComm_t Comm(Handle comm) { return static_cast<ncclComm_t>(comm); }

// NCCL's functions, each by the header's declaration; or why it is not there.
struct Nccl {
  std::string missing;
  decltype(&::ncclGetUniqueId) unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) init = nullptr;
  decltype(&::ncclCommSplit) split = nullptr;
  decltype(&::ncclCommGetAsyncError) state = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclReduce) reduce = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclGetErrorString) text = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;

  // What a call that may go on in the background says.
  Status Of(ncclResult_t result) const {
    if (result == ncclSuccess || result == ncclInProgress) return "";
    Status status = text(result);
    // In words and with the place, where it has them.
    if (const char* last = last_error(nullptr); last != nullptr && *last != '\0') {
      status += std::string(" (") + last + ")";
    }
    return status;
  }
};

Nccl LoadNccl() {
  Nccl nccl;
  SharedLibrary library("libnccl.so.2");
  library.Find("ncclGetUniqueId", nccl.unique_id);
  library.Find("ncclCommInitRankConfig", nccl.init);
  library.Find("ncclCommSplit", nccl.split);
  library.Find("ncclCommGetAsyncError", nccl.state);
  library.Find("ncclCommDestroy", nccl.destroy);
  library.Find("ncclCommAbort", nccl.abort);
  library.Find("ncclGroupStart", nccl.group_start);
  library.Find("ncclGroupEnd", nccl.group_end);
  library.Find("ncclAllReduce", nccl.all_reduce);
  library.Find("ncclReduceScatter", nccl.reduce_scatter);
  library.Find("ncclAllGather", nccl.all_gather);
  library.Find("ncclBroadcast", nccl.broadcast);
  library.Find("ncclReduce", nccl.reduce);
  library.Find("ncclSend", nccl.send);
  library.Find("ncclRecv", nccl.receive);
  library.Find("ncclGetErrorString", nccl.text);
  library.Find("ncclGetLastError", nccl.last_error);
  nccl.missing = library.error();
  return nccl;
}

ncclDataType_t DataType(Element element, ElementType type) {
  switch (type) {
    case ElementType::kFp64:
      return ncclFloat64;
    case ElementType::kFp32:
      return ncclFloat32;
    case ElementType::kBf16:
      return element == Element::kValue ? ncclBfloat16 : ncclFloat32;
  }
  return ncclFloat32;
}

ncclResult_t Communicate(const Nccl& nccl, const NcclCall& call, ElementType type, ncclComm_t comm,
                         cudaStream_t stream) {
  const auto count = std::size_t(call.count);
  const ncclDataType_t data = DataType(call.element, type);
  const ncclRedOp_t reduction = call.reduction == Reduction::kSum ? ncclSum : ncclMax;
  switch (call.kind) {
    case NcclCall::Kind::kAllReduce:
      return nccl.all_reduce(call.from, call.to, count, data, reduction, comm, stream);
    case NcclCall::Kind::kReduceScatter:
      return nccl.reduce_scatter(call.from, call.to, count, data, reduction, comm, stream);
    case NcclCall::Kind::kAllGather:
      return nccl.all_gather(call.from, call.to, count, data, comm, stream);
    case NcclCall::Kind::kBroadcast:
      return nccl.broadcast(call.from, call.to, count, data, call.peer, comm, stream);
    case NcclCall::Kind::kReduce:
      return nccl.reduce(call.from, call.to, count, data, reduction, call.peer, comm, stream);
    case NcclCall::Kind::kSend:
      return nccl.send(call.from, count, data, call.peer, comm, stream);
    case NcclCall::Kind::kReceive:
      return nccl.receive(call.to, count, data, call.peer, comm, stream);
  }
  return ncclInvalidArgument;
}

void AddNccl(GpuCalls& calls) {
  const Nccl nccl = LoadNccl();
  calls.unique_id = [nccl](GpuCalls::UniqueId& id) -> Status {
    if (!nccl.missing.empty()) return nccl.missing;
    ncclUniqueId own{};
    static_assert(sizeof own == sizeof id);
    const ncclResult_t result = nccl.unique_id(&own);
    std::memcpy(id.data(), &own, sizeof own);
    return nccl.Of(result);
  };
  calls.comm_init = [nccl](Handle& comm, int ranks, const GpuCalls::UniqueId& id,
                           int rank) -> Status {
    if (!nccl.missing.empty()) return nccl.missing;
    ncclUniqueId own{};
    std::memcpy(&own, id.data(), sizeof own);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // or a rank that does not come is waited for in here
    ncclComm_t made = nullptr;
    const ncclResult_t result = nccl.init(&made, ranks, own, rank, &config);
    comm = made;
    return nccl.Of(result);
  };
  calls.comm_split = [nccl](Handle comm, int color, int key, Handle& part) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    const ncclResult_t result =
        nccl.split(Comm(comm), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &made, &config);
    part = made;
    return nccl.Of(result);
  };
  calls.comm_state = [nccl](Handle comm, bool& ready) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = nccl.state(Comm(comm), &state);
    ready = state == ncclSuccess;
    return nccl.Of(result != ncclSuccess ? result : state);
  };
  calls.comm_destroy = [nccl](Handle comm) { return nccl.Of(nccl.destroy(Comm(comm))); };
  calls.comm_abort = [nccl](Handle comm) { return nccl.Of(nccl.abort(Comm(comm))); };
  calls.group_start = [nccl] { return nccl.Of(nccl.group_start()); };
  calls.group_end = [nccl] { return nccl.Of(nccl.group_end()); };
  calls.communicate = [nccl](const NcclCall& call, ElementType type, Handle comm, Handle stream) {
    return nccl.Of(Communicate(nccl, call, type, Comm(comm), CudaStream(stream)));
  };
}

Status Launch(const Operation& operation, ElementType type, Handle products, Handle stream) {
  return std::visit(
      [&](const auto& op) -> Status {
        using Op = std::decay_t<decltype(op)>;
        if constexpr (std::is_same_v<Op, compute::Linear> ||
                      std::is_same_v<Op, compute::LinearInputGradient> ||
                      std::is_same_v<Op, compute::LinearWeightGradient>) {
          return static_cast<Products*>(products)->Run(op, type, CudaStream(stream));
        } else {
          return Of(LaunchKernel(operation, type, CudaStream(stream)));
        }
      },
      operation);
}

#if MILLWRIGHT_HAS_CUDNN
void AddCudnn(GpuCalls& calls) {
  calls.attention_takes = CudnnAttention::Takes;
  calls.attention_create = [](Handle& attention, std::string& name) {
    auto made = std::make_unique<CudnnAttention>();
    Status status = made->Start();
    if (status.empty()) name = made->version();
    attention = status.empty() ? made.release() : nullptr;
    return status;
  };
  calls.attention_destroy = [](Handle attention) -> Status {
    delete static_cast<CudnnAttention*>(attention);
    return "";
  };
  calls.attention_prepare = [](Handle attention, const AttentionCall& call,
                               std::int64_t& workspace) {
    return static_cast<CudnnAttention*>(attention)->Prepare(call, workspace);
  };
  calls.attention_run = [](Handle attention, const AttentionCall& call, void* workspace,
                           Handle stream) {
    return static_cast<CudnnAttention*>(attention)->Run(call, workspace, stream);
  };
}
#endif

}  // namespace

std::optional<GpuCalls> RealGpuCalls() {
  GpuCalls calls;
  calls.device_count = [](int& count) {
    // Streams that share one of the driver's queues, of which there are 8 unless this is set (CUDA
    // C++ Programming Guide, "CUDA Environment Variables"), wait for each other: a message that
    // waits for its receiver would hold up the computation.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    return Of(::cudaGetDeviceCount(&count));
  };
  calls.device_name = [](int device, std::string& name) {
    cudaDeviceProp properties{};
    Status status = Of(::cudaGetDeviceProperties(&properties, device));
    name = properties.name;
    return status;
  };
  calls.set_device = [](int device) { return Of(::cudaSetDevice(device)); };
  calls.allocate = [](void*& data, std::int64_t bytes) {
    return Of(::cudaMalloc(&data, std::size_t(bytes)));
  };
  calls.release = [](void* data) { return Of(::cudaFree(data)); };
  calls.copy_in = [](void* to, const void* from, std::int64_t bytes, Handle stream) {
    // Of memory that is not pinned, the driver takes a copy before it returns.
    return Of(
        cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyHostToDevice, CudaStream(stream)));
  };
  calls.copy_out = [](void* to, const void* from, std::int64_t bytes, Handle stream) {
    const cudaError_t error =
        cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyDeviceToHost, CudaStream(stream));
    return Of(error == cudaSuccess ? cudaStreamSynchronize(CudaStream(stream)) : error);
  };
  calls.stream_create = [](Handle& stream) {
    cudaStream_t made = nullptr;
    const cudaError_t error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    stream = made;
    return Of(error);
  };
  calls.stream_destroy = [](Handle stream) { return Of(::cudaStreamDestroy(CudaStream(stream))); };
  calls.event_create = [](Handle& event) {
    cudaEvent_t made = nullptr;
    const cudaError_t error = ::cudaEventCreate(&made);
    event = made;
    return Of(error);
  };
  calls.event_destroy = [](Handle event) { return Of(::cudaEventDestroy(Event(event))); };
  calls.event_record = [](Handle event, Handle stream) {
    return Of(::cudaEventRecord(Event(event), CudaStream(stream)));
  };
  calls.stream_wait = [](Handle stream, Handle event) {
    return Of(::cudaStreamWaitEvent(CudaStream(stream), Event(event), 0));
  };
  calls.event_query = [](Handle event, bool& done) {
    const cudaError_t error = ::cudaEventQuery(Event(event));
    done = error == cudaSuccess;
    return Of(error == cudaErrorNotReady ? cudaSuccess : error);
  };
  calls.event_elapsed = [](Handle start, Handle end, double& seconds) {
    float milliseconds = 0;
    const cudaError_t error = ::cudaEventElapsedTime(&milliseconds, Event(start), Event(end));
    seconds = double(milliseconds) * 1e-3;
    return Of(error);
  };
  calls.products_create = [](Handle& products) {
    auto made = std::make_unique<Products>();
    Status status = made->Start();
    products = status.empty() ? made.release() : nullptr;
    return status;
  };
  calls.products_destroy = [](Handle products) -> Status {
    delete static_cast<Products*>(products);
    return "";
  };
  calls.launch = Launch;
  AddNccl(calls);
#if MILLWRIGHT_HAS_CUDNN
  AddCudnn(calls);
#endif
  return calls;
}

}  // namespace millwright

#endif
