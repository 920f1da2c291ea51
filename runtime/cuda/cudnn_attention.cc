// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/cudnn_attention.h"

#include <cudnn.h>
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/cuda/shared_library.h"

namespace millwright {
namespace {

// By which a plan knows the tensors that it is given.
enum TensorId : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOutput,
  kLogSum,
  kDOutput,
  kDQ,
  kDK,
  kDV,
  kRowSums,  // of output x its gradient, in the workspace, as is
  kDQSum,    // dq in FP32
  kScale,
  kMinusInfinity,
  kOne,
  kFirstVirtual
};

constexpr std::int64_t kAlignment = 16;       // bytes, of all tensors
constexpr std::int64_t kWorkspacePart = 256;  // as of what cudaMalloc gives

std::int64_t WholeParts(std::int64_t bytes) {
  return (bytes + kWorkspacePart - 1) / kWorkspacePart * kWorkspacePart;
}

using Dims = std::array<std::int64_t, 4>;  // sequence, head, row, column

Dims Packed(const Dims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}
Dims Transposed(Dims dims) {
  std::swap(dims[2], dims[3]);
  return dims;
}

}  // namespace

// cuDNN's functions, each by the header's declaration.
struct CudnnAttention::Library {
  decltype(&::cudnnGetVersion) version = nullptr;
  decltype(&::cudnnCreate) create = nullptr;
  decltype(&::cudnnDestroy) destroy = nullptr;
  decltype(&::cudnnSetStream) set_stream = nullptr;
  decltype(&::cudnnGetErrorString) text = nullptr;
  decltype(&::cudnnGetLastErrorString) last_error = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&::cudnnBackendSetAttribute) set = nullptr;
  decltype(&::cudnnBackendGetAttribute) get = nullptr;
  decltype(&::cudnnBackendFinalize) finalize = nullptr;
  decltype(&::cudnnBackendExecute) execute = nullptr;
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t device = nullptr;  // where there is no handle

  // Throws what cuDNN says.
  void Check(std::string_view call, cudnnStatus_t status) const {
    if (status == CUDNN_STATUS_SUCCESS) return;
    std::array<char, 512> last{};
    last_error(last.data(), last.size());
    std::string_view why = last.data();
    why = why.substr(0, why.find('\n'));
    throw std::runtime_error(
        fmt::format("{}: {}{}{}", call, text(status), why.empty() ? "" : ": ", why));
  }
  cudnnBackendDescriptor_t New(cudnnBackendDescriptorType_t kind) const {
    cudnnBackendDescriptor_t made = nullptr;
    Check("cudnnBackendCreateDescriptor", create_descriptor(kind, &made));
    return made;
  }
  void Set(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, std::int64_t count, const void* values) const {
    Check("cudnnBackendSetAttribute", set(of, name, type, count, values));
  }
  void Finalize(cudnnBackendDescriptor_t descriptor) const {
    Check("cudnnBackendFinalize", finalize(descriptor));
  }
};

// A graph as cuDNN will execute it, with all descriptors that it was made of.
struct CudnnAttention::Plan {
  explicit Plan(const Library& of) : library(of) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (auto it = descriptors.rbegin(); it != descriptors.rend(); ++it) {
      library.destroy_descriptor(*it);
    }
  }
  cudnnBackendDescriptor_t New(cudnnBackendDescriptorType_t kind) {
    return descriptors.emplace_back(library.New(kind));
  }

  const Library& library;
  std::vector<cudnnBackendDescriptor_t> descriptors;
  cudnnBackendDescriptor_t execution = nullptr;
  std::int64_t own_workspace = 0;  // of cuDNN's kernels; the graph's tensors come after it
  std::int64_t row_sums_bytes = 0, dq_sum_bytes = 0;

  std::int64_t workspace() const { return own_workspace + row_sums_bytes + dq_sum_bytes; }
};

class CudnnAttention::Builder {
 public:
  Builder(Plan& plan, const Shape& shape) : plan_(plan), library_(plan.library), shape_(shape) {}

  void Build() {
    shape_.backward ? Backward() : Forward();
    Finish();
  }

 private:
  struct Tensor {
    cudnnBackendDescriptor_t descriptor = nullptr;
    Dims dims{}, strides{};
  };

  void Set(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
           cudnnBackendDescriptor_t value) {
    library_.Set(of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
  }
  void Set(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    library_.Set(of, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  void Set(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name, std::int64_t value) {
    library_.Set(of, name, CUDNN_TYPE_INT64, 1, &value);
  }
  void Set(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name, bool value) {
    library_.Set(of, name, CUDNN_TYPE_BOOLEAN, 1, &value);
  }

  Tensor NewTensor(std::int64_t id, const Dims& dims, const Dims& strides, cudnnDataType_t type,
                   bool by_value = false) {
    const cudnnBackendDescriptor_t made = plan_.New(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    Set(made, CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
    Set(made, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    library_.Set(made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data());
    library_.Set(made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
    Set(made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
    Set(made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, id >= kFirstVirtual);
    Set(made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value);
    library_.Finalize(made);
    return {made, dims, strides};
  }
  // What lies between two operations.
  Tensor Virtual(const Dims& dims, const Dims& strides, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return NewTensor(next_virtual_++, dims, strides, type);
  }
  Tensor Number(TensorId id) {
    return NewTensor(id, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, true);
  }
  // Rows of `heads` heads; of both passes' matrix products some operands are transposed.
  Tensor Rows(TensorId id, int heads, bool transposed = false) {
    const std::int64_t e = shape_.head_size, s = shape_.tokens;
    const Dims dims{shape_.sequences, heads, s, e}, strides{s * heads * e, e, heads * e, 1};
    return transposed ? NewTensor(id, Transposed(dims), Transposed(strides), CUDNN_DATA_BFLOAT16)
                      : NewTensor(id, dims, strides, CUDNN_DATA_BFLOAT16);
  }
  // A number for each row and head, rows first.
  Tensor LogSum() {
    const std::int64_t s = shape_.tokens, h = shape_.heads;
    return NewTensor(kLogSum, {shape_.sequences, h, s, 1}, {s * h, 1, h, 1}, CUDNN_DATA_FLOAT);
  }
  Dims ScoreDims() const { return {shape_.sequences, shape_.heads, shape_.tokens, shape_.tokens}; }
  Dims RowDims() const { return {shape_.sequences, shape_.heads, shape_.tokens, 1}; }

  void Pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor* b, const Tensor* t,
                 const Tensor& y, cudnnDataType_t math = CUDNN_DATA_FLOAT, std::int64_t axis = -1) {
    const cudnnBackendDescriptor_t how = plan_.New(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    library_.Set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    Set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, math);
    if (axis >= 0) Set(how, CUDNN_ATTR_POINTWISE_AXIS, axis);
    library_.Finalize(how);
    const cudnnBackendDescriptor_t made = plan_.New(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    Set(made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    Set(made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.descriptor);
    if (b != nullptr) Set(made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->descriptor);
    if (t != nullptr) Set(made, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->descriptor);
    Set(made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.descriptor);
    Add(made);
  }
  Tensor Pointwise(cudnnPointwiseMode_t mode, const Tensor& x) {
    const Tensor y = Virtual(x.dims, x.strides);
    Pointwise(mode, x, nullptr, nullptr, y);
    return y;
  }
  Tensor Pointwise(cudnnPointwiseMode_t mode, const Tensor& x, const Tensor& b) {
    const Tensor y = Virtual(x.dims, x.strides);
    Pointwise(mode, x, &b, nullptr, y);
    return y;
  }
  void Reduce(cudnnReduceTensorOp_t what, const Tensor& x, const Tensor& y) {
    const cudnnBackendDescriptor_t how = plan_.New(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    library_.Set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &what);
    Set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    library_.Finalize(how);
    const cudnnBackendDescriptor_t made = plan_.New(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    Set(made, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    Set(made, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor);
    Set(made, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor);
    Add(made);
  }
  Tensor OverColumns(cudnnReduceTensorOp_t what, const Tensor& x) {
    const Tensor y = Virtual(RowDims(), Packed(RowDims()));
    Reduce(what, x, y);
    return y;
  }
  void Multiply(const Tensor& a, const Tensor& b, const Tensor& c) {
    const cudnnBackendDescriptor_t how = plan_.New(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    Set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    library_.Finalize(how);
    const cudnnBackendDescriptor_t made = plan_.New(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    Set(made, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    Set(made, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor);
    Set(made, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor);
    Set(made, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor);
    Add(made);
  }
  Tensor Scores(const Tensor& a, const Tensor& b) {
    const Tensor c = Virtual(ScoreDims(), Packed(ScoreDims()));
    Multiply(a, b, c);
    return c;
  }
  Tensor TransposedOf(const Tensor& x, cudnnDataType_t type) {
    const Tensor y = Virtual(Transposed(x.dims), Transposed(x.strides), type);
    const cudnnBackendDescriptor_t made = plan_.New(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    Set(made, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor);
    Set(made, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor);
    Add(made);
    return y;
  }
  void Add(cudnnBackendDescriptor_t operation) {
    library_.Finalize(operation);
    operations_.push_back(operation);
  }

  // Minus infinity where the key's position is after the query's.
  Tensor Masked(const Tensor& scores) {
    const Tensor rows = Virtual(scores.dims, scores.strides, CUDNN_DATA_INT32);
    Pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, nullptr, rows, CUDNN_DATA_FLOAT, 2);
    const Tensor columns = Virtual(scores.dims, scores.strides, CUDNN_DATA_INT32);
    Pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, nullptr, columns, CUDNN_DATA_FLOAT, 3);
    const Tensor sees = Virtual(scores.dims, scores.strides, CUDNN_DATA_BOOLEAN);
    Pointwise(CUDNN_POINTWISE_CMP_GE, rows, &columns, nullptr, sees, CUDNN_DATA_BOOLEAN);
    const Tensor never = Number(kMinusInfinity);
    const Tensor masked = Virtual(scores.dims, scores.strides);
    Pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, &never, &sees, masked);
    return masked;
  }

  void Forward() {
    const Tensor q = Rows(kQ, shape_.heads), k = Rows(kK, shape_.groups, true);
    const Tensor scale = Number(kScale);
    const Tensor scores = Masked(Pointwise(CUDNN_POINTWISE_MUL, Scores(q, k), scale));
    const Tensor maximum = OverColumns(CUDNN_REDUCE_TENSOR_MAX, scores);
    const Tensor weights =
        Pointwise(CUDNN_POINTWISE_EXP, Pointwise(CUDNN_POINTWISE_SUB, scores, maximum));
    const Tensor sum = OverColumns(CUDNN_REDUCE_TENSOR_ADD, weights);
    const Tensor log = Pointwise(CUDNN_POINTWISE_LOG, sum), log_sum = LogSum();
    Pointwise(CUDNN_POINTWISE_ADD, maximum, &log, nullptr, log_sum);
    const Tensor softmax = Virtual(weights.dims, weights.strides, CUDNN_DATA_BFLOAT16);
    Pointwise(CUDNN_POINTWISE_DIV, weights, &sum, nullptr, softmax);
    const Tensor v = Rows(kV, shape_.groups);
    Multiply(softmax, v, Rows(kOutput, shape_.heads));
  }

  // The gradient of keys or values: where heads share them, the sum of each head's.
  void ToKeys(const Tensor& weights, const Tensor& rows, const Tensor& gradient) {
    const Tensor transposed = TransposedOf(weights, CUDNN_DATA_BFLOAT16);
    if (shape_.heads == shape_.groups) {
      Multiply(transposed, rows, gradient);
      return;
    }
    const Tensor of_heads = Virtual(rows.dims, Packed(rows.dims), CUDNN_DATA_BFLOAT16);
    Multiply(transposed, rows, of_heads);
    Reduce(CUDNN_REDUCE_TENSOR_ADD, of_heads, gradient);
  }

  void Backward() {
    const Tensor q = Rows(kQ, shape_.heads), k = Rows(kK, shape_.groups, true),
                 v = Rows(kV, shape_.groups, true), output = Rows(kOutput, shape_.heads),
                 doutput = Rows(kDOutput, shape_.heads), log_sum = LogSum();
    const Tensor scale = Number(kScale), one = Number(kOne);
    // The sum of output x its gradient is that of the softmax x its own.
    const Tensor row_sums = NewTensor(kRowSums, RowDims(), Packed(RowDims()), CUDNN_DATA_FLOAT);
    Pointwise(CUDNN_POINTWISE_MUL,
              OverColumns(CUDNN_REDUCE_TENSOR_ADD, Pointwise(CUDNN_POINTWISE_MUL, doutput, output)),
              &one, nullptr, row_sums);
    const Tensor scores = Pointwise(CUDNN_POINTWISE_MUL, Scores(q, k), scale);
    const Tensor weights =
        Pointwise(CUDNN_POINTWISE_EXP, Masked(Pointwise(CUDNN_POINTWISE_SUB, scores, log_sum)));
    ToKeys(weights, doutput, Rows(kDV, shape_.groups));
    const Tensor dweights = Pointwise(CUDNN_POINTWISE_SUB, Scores(doutput, v), row_sums);
    const Tensor dscores =
        Pointwise(CUDNN_POINTWISE_MUL, Pointwise(CUDNN_POINTWISE_MUL, dweights, weights), scale);
    ToKeys(dscores, q, Rows(kDK, shape_.groups));
    const Tensor dq = Rows(kDQ, shape_.heads);
    const Tensor sum = NewTensor(kDQSum, dq.dims, Packed(dq.dims), CUDNN_DATA_FLOAT);
    Multiply(dscores, TransposedOf(k, CUDNN_DATA_FLOAT), sum);
    Pointwise(CUDNN_POINTWISE_IDENTITY, sum, nullptr, nullptr, dq);
    const std::int64_t row_count = shape_.sequences * shape_.heads * shape_.tokens;
    plan_.row_sums_bytes = WholeParts(row_count * 4);
    plan_.dq_sum_bytes = row_count * shape_.head_size * 4;
  }

  // The engine that cuDNN thinks best, or the first after it that it can make.
  void Finish() {
    const cudnnBackendDescriptor_t graph = plan_.New(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    library_.Set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                 std::int64_t(operations_.size()), operations_.data());
    if (library_.handle != nullptr) {
      library_.Set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &library_.handle);
    }
    library_.Finalize(graph);
    const cudnnBackendDescriptor_t heuristic = plan_.New(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    Set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    library_.Set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (library_.device != nullptr) {
      Set(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, library_.device);
    }
    library_.Finalize(heuristic);
    std::int64_t count = 0;
    library_.Check("cudnnBackendGetAttribute",
                   library_.get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
    std::vector<cudnnBackendDescriptor_t> engines;
    for (std::int64_t i = 0; i < count; ++i) {
      engines.push_back(plan_.New(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    }
    library_.Check("cudnnBackendGetAttribute",
                   library_.get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, engines.data()));
    std::string refused = "it has no kernel for this on this GPU";
    for (std::size_t i = 0; i < std::size_t(count) && plan_.execution == nullptr; ++i) {
      try {
        plan_.execution = Executable(engines[i]);
      } catch (const std::runtime_error& error) {
        refused = error.what();
      }
    }
    if (plan_.execution == nullptr) throw std::runtime_error(refused);
    std::int64_t got = 0;
    library_.Check("cudnnBackendGetAttribute",
                   library_.get(plan_.execution, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                CUDNN_TYPE_INT64, 1, &got, &plan_.own_workspace));
    plan_.own_workspace = WholeParts(plan_.own_workspace);
  }
  cudnnBackendDescriptor_t Executable(cudnnBackendDescriptor_t engine) {
    const cudnnBackendDescriptor_t made = plan_.New(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    Set(made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine);
    if (library_.device != nullptr) {
      Set(made, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, library_.device);
    } else {
      library_.Set(made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &library_.handle);
    }
    library_.Finalize(made);
    return made;
  }

  Plan& plan_;
  const Library& library_;
  Shape shape_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  std::int64_t next_virtual_ = kFirstVirtual;
};

CudnnAttention::CudnnAttention() : library_(std::make_unique<Library>()) {}

CudnnAttention::~CudnnAttention() {
  plans_.clear();
  if (library_->device != nullptr) library_->destroy_descriptor(library_->device);
  if (library_->handle != nullptr) library_->destroy(library_->handle);
}

std::string CudnnAttention::Start(const std::string& device) {
  SharedLibrary library(fmt::format("libcudnn.so.{}", CUDNN_MAJOR).c_str());
  library.Find("cudnnGetVersion", library_->version);
  library.Find("cudnnCreate", library_->create);
  library.Find("cudnnDestroy", library_->destroy);
  library.Find("cudnnSetStream", library_->set_stream);
  library.Find("cudnnGetErrorString", library_->text);
  library.Find("cudnnGetLastErrorString", library_->last_error);
  library.Find("cudnnBackendCreateDescriptor", library_->create_descriptor);
  library.Find("cudnnBackendDestroyDescriptor", library_->destroy_descriptor);
  library.Find("cudnnBackendSetAttribute", library_->set);
  library.Find("cudnnBackendGetAttribute", library_->get);
  library.Find("cudnnBackendFinalize", library_->finalize);
  library.Find("cudnnBackendExecute", library_->execute);
  if (!library.error().empty()) return library.error();
  try {
    if (device.empty()) {
      library_->Check("cudnnCreate", library_->create(&library_->handle));
      return "";
    }
    library_->device = library_->New(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    library_->Set(library_->device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                  std::int64_t(device.size()), device.data());
    library_->Finalize(library_->device);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

std::string CudnnAttention::version() const {
  const std::size_t number = library_->version();
  return fmt::format("cuDNN {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

bool CudnnAttention::Takes(const AttentionLayout& layout, ElementType type) {
  return type == ElementType::kBf16 && layout.window == 0 && layout.head_size <= 128 &&
         layout.head_size % 8 == 0 && layout.heads % layout.groups == 0;
}

auto CudnnAttention::ShapeOf(const AttentionCall& call) -> Shape {
  return std::visit(
      [](const auto& op) -> Shape {
        return {.sequences = op.layout.sequences,
                .tokens = op.q.rows / op.layout.sequences,
                .head_size = op.layout.head_size,
                .heads = op.layout.heads,
                .groups = op.layout.groups,
                .scale = float(op.layout.scale),
                .backward = std::is_same_v<decltype(op), const compute::AttentionBackward&>};
      },
      call);
}

std::string CudnnAttention::Prepare(const AttentionCall& call, std::int64_t& workspace) {
  const Shape shape = ShapeOf(call);
  auto found = plans_.find(shape);
  if (found == plans_.end()) {
    auto plan = std::make_unique<Plan>(*library_);
    try {
      Builder(*plan, shape).Build();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    found = plans_.emplace(shape, std::move(plan)).first;
  }
  workspace = found->second->workspace();
  return "";
}

std::string CudnnAttention::Run(const AttentionCall& call, void* workspace, void* stream) {
  const auto found = plans_.find(ShapeOf(call));
  if (found == plans_.end()) return "it was not prepared for this shape";
  const Plan& plan = *found->second;
  const float scale = found->first.scale, one = 1,
              minus_infinity = -std::numeric_limits<float>::infinity();
  std::vector<std::int64_t> ids;
  std::vector<void*> data;
  const auto give = [&](TensorId id, const void* at) {
    ids.push_back(id);
    data.push_back(const_cast<void*>(at));  // cuDNN's type, also of what it only reads
  };
  std::visit(
      [&](const auto& op) {
        give(kQ, op.q.data);
        give(kK, op.k.data);
        give(kV, op.v.data);
        give(kOutput, op.output.data);
        give(kLogSum, op.log_sum.data);
      },
      call);
  give(kScale, &scale);
  give(kMinusInfinity, &minus_infinity);
  if (const auto* op = std::get_if<compute::AttentionBackward>(&call)) {
    std::byte* own = static_cast<std::byte*>(workspace) + plan.own_workspace;
    give(kDOutput, op->doutput.data);
    give(kDQ, op->dq.data);
    give(kDK, op->dk.data);
    give(kDV, op->dv.data);
    give(kOne, &one);
    give(kRowSums, own);
    give(kDQSum, own + plan.row_sums_bytes);
  }
  const auto count = std::int64_t(ids.size());
  try {
    Plan pack(*library_);  // of one descriptor
    const cudnnBackendDescriptor_t tensors = pack.New(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    library_->Set(tensors, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
    library_->Set(tensors, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                  data.data());
    library_->Set(tensors, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    library_->Finalize(tensors);
    library_->Check("cudnnSetStream",
                    library_->set_stream(library_->handle, static_cast<cudaStream_t>(stream)));
    library_->Check("cudnnBackendExecute",
                    library_->execute(library_->handle, plan.execution, tensors));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace millwright
