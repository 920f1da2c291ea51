// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels, compiled for the host (cuda_runtime.h beside this), against
// runtime/cpu_kernels: each operation on the same random operands, in fp64 to 1e-12 of the largest
// element, in fp32 and with values in bf16 to their rounding.
//
// What this cannot find: what only a GPU does, as races that its order of threads does not show,
// alignment, and limits of registers and shared memory.
#include "runtime/cuda/kernels.cu"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu_kernels.h"

namespace millwright {
namespace {

// Two copies of operands: doubles for the CPU, and of the type for the kernel.
class Operands {
 public:
  explicit Operands(ElementType type) : type_(type) {}

  struct Pair {
    View cpu, gpu;
    std::string name;
  };
  // Uniform from -1 to 1, rounded to the type on both sides.
  Pair& Random(const char* name, std::int64_t rows, std::int64_t cols,
               Element element = Element::kValue, double first = -1, double last = 1) {
    std::uniform_real_distribution<double> uniform(first, last);
    Pair& pair = Make(name, rows, cols, element);
    for (std::int64_t i = 0; i < rows * cols; ++i) Set(pair, i, uniform(random_));
    return pair;
  }
  Pair& Same(const char* name, std::int64_t rows, std::int64_t cols, Element element,
             double value) {
    Pair& pair = Make(name, rows, cols, element);
    for (std::int64_t i = 0; i < rows * cols; ++i) Set(pair, i, value);
    return pair;
  }
  Pair& Indices(const char* name, const std::vector<std::int32_t>& values) {
    Pair& pair = Make(name, 1, std::int64_t(values.size()), Element::kIndex);
    std::memcpy(pair.cpu.data, values.data(), values.size() * 4);
    std::memcpy(pair.gpu.data, values.data(), values.size() * 4);
    return pair;
  }

  // To be written.
  Pair& Fp8(const char* name, std::int64_t rows, std::int64_t cols, Element element) {
    Pair& pair = Make(name, rows, cols, element);
    for (const View& side : {pair.cpu, pair.gpu}) {
      std::fill_n(side.data, rows * cols, std::byte{1});
    }
    return pair;
  }

  // `make(side)` gives the operation on the views that side(pair) is.
  template <class Make>
  void ExpectSame(const Make& make) {
    ComputeOnCpu<double>(make([](const Pair& pair) { return pair.cpu; }));
    const Operation on_gpu = make([](const Pair& pair) { return pair.gpu; });
    ASSERT_EQ(LaunchKernel(on_gpu, type_, nullptr), cudaSuccess);
    for (const Pair& pair : pairs_) {
      if (pair.cpu.element == Element::kIndex) continue;
      if (IsFp8(pair.cpu.element)) {
        EXPECT_EQ(std::memcmp(pair.cpu.data, pair.gpu.data, std::size_t(pair.cpu.bytes())), 0)
            << pair.name;
        continue;
      }
      double largest = 0, off = 0;
      for (std::int64_t i = 0; i < pair.cpu.size(); ++i) {
        const double expected = Cpu(pair)[i], got = Get(pair, i);
        if (expected == got) continue;  // infinities too
        largest = std::max(largest, std::abs(expected));
        const double difference = std::abs(expected - got);
        off = difference <= off ? off : difference;
        if (std::isnan(difference)) off = std::numeric_limits<double>::infinity();
      }
      EXPECT_LE(off, Limit(pair.cpu.element) * std::max(largest, 1e-3)) << pair.name;
      // The next operation begins with the same numbers on both sides.
      for (std::int64_t i = 0; i < pair.cpu.size(); ++i) Cpu(pair)[i] = Get(pair, i);
    }
  }

 private:
  Pair& Make(const char* name, std::int64_t rows, std::int64_t cols, Element element) {
    const int width = IsFp8(element)                                              ? 1
                      : element == Element::kIndex                                ? 4
                      : type_ == ElementType::kFp64                               ? 8
                      : type_ == ElementType::kBf16 && element == Element::kValue ? 2
                                                                                  : 4;
    const auto view = [&](int bytes) {
      auto& buffer = buffers_.emplace_back(std::size_t(rows * cols * bytes));
      return View{buffer.data(), rows, cols, element, bytes};
    };
    const int of_cpu = element == Element::kIndex ? 4 : 8;
    return pairs_.emplace_back(view(IsFp8(element) ? 1 : of_cpu), view(width), name);
  }
  static double* Cpu(const Pair& pair) { return reinterpret_cast<double*>(pair.cpu.data); }
  static void Set(Pair& pair, std::int64_t i, double value) {
    if (pair.gpu.width == 8) {
      reinterpret_cast<double*>(pair.gpu.data)[i] = value;
    } else if (pair.gpu.width == 4) {
      reinterpret_cast<float*>(pair.gpu.data)[i] = float(value);
    } else {
      reinterpret_cast<__nv_bfloat16*>(pair.gpu.data)[i] = __float2bfloat16_rn(float(value));
    }
    Cpu(pair)[i] = Get(pair, i);
  }
  static double Get(const Pair& pair, std::int64_t i) {
    if (pair.gpu.width == 8) return reinterpret_cast<double*>(pair.gpu.data)[i];
    if (pair.gpu.width == 4) return double(reinterpret_cast<float*>(pair.gpu.data)[i]);
    return double(__bfloat162float(reinterpret_cast<__nv_bfloat16*>(pair.gpu.data)[i]));
  }
  double Limit(Element element) const {
    if (type_ == ElementType::kFp64) return 1e-12;
    // Half a unit in the last of eight bits is 2^-9 of the element.
    return type_ == ElementType::kBf16 && element == Element::kValue ? 0x1p-8 : 2e-5;
  }

  ElementType type_;
  std::mt19937 random_{1};
  std::list<std::vector<std::byte>> buffers_;
  std::list<Pair> pairs_;
};

class Kernels : public testing::TestWithParam<ElementType> {
 protected:
  Operands operands_{GetParam()};
};
using Pair = Operands::Pair;
constexpr Element kSum = Element::kSum;

TEST_P(Kernels, MovingAndAdding) {
  Pair &a = operands_.Random("a", 7, 300), &b = operands_.Random("b", 7, 300),
       &sum_a = operands_.Random("sum a", 1, 700, kSum),
       &sum_b = operands_.Random("sum b", 1, 700, kSum);
  operands_.ExpectSame([&](auto of) { return compute::Add{.from = of(a), .to = of(b)}; });
  operands_.ExpectSame([&](auto of) { return compute::Add{.from = of(sum_a), .to = of(sum_b)}; });
  operands_.ExpectSame([&](auto of) { return compute::Copy{.from = of(b), .to = of(a)}; });
  operands_.ExpectSame([&](auto of) { return compute::Fill{.to = of(sum_b), .value = 0.25}; });
  for (bool add : {false, true}) {
    operands_.ExpectSame([&](auto of) {
      return compute::CopyBlock{.from = of(b).Part(20, 1900),
                                .to = of(a).Part(4, 1000),
                                .rows = 6,
                                .cols = 50,
                                .from_stride = 300,
                                .to_stride = 150,
                                .add = add};
    });
  }
}

TEST_P(Kernels, Biases) {
  Pair &x = operands_.Random("x", 37, 70), &bias = operands_.Random("bias", 1, 70),
       &sums = operands_.Random("sums", 1, 70, kSum);
  operands_.ExpectSame([&](auto of) { return compute::AddBias{.bias = of(bias), .x = of(x)}; });
  operands_.ExpectSame([&](auto of) { return compute::AddColumns{.from = of(x), .to = of(sums)}; });
}

// Rows and columns that fill no square of a transposition, a scale that is raised and one that is
// not, numbers of every size, and a scale of nothing.
TEST_P(Kernels, RoundedToFp8) {
  for (const Element format : {Element::kFp8, Element::kFp8Gradient}) {
    for (const bool transposed : {false, true}) {
      Operands operands(GetParam());
      Pair &x = operands.Random("x", 45, 70),
           &small = operands.Random("small", 45, 70, Element::kValue, -1e-3, 1e-3),
           &zeros = operands.Same("zeros", 45, 70, Element::kValue, 0),
           &scale = operands.Same("scale", 1, 1, kSum, 0),
           &none = operands.Same("none", 1, 1, kSum, 0),
           &y = transposed ? operands.Fp8("y", 70, 48, format) : operands.Fp8("y", 45, 80, format);
      for (Pair* rows : {&small, &x, &small}) {
        operands.ExpectSame([&](auto of) {
          return compute::RaiseFp8Scale{.x = of(*rows), .format = format, .scale = of(scale)};
        });
        operands.ExpectSame([&](auto of) {
          return compute::RoundToFp8{
              .x = of(*rows), .scale = of(scale), .to = of(y), .transposed = transposed};
        });
      }
      operands.ExpectSame([&](auto of) {
        return compute::RaiseFp8Scale{.x = of(zeros), .format = format, .scale = of(none)};
      });
      operands.ExpectSame([&](auto of) {
        return compute::RoundToFp8{
            .x = of(zeros), .scale = of(none), .to = of(y), .transposed = transposed};
      });
    }
  }
}

TEST_P(Kernels, RmsNorm) {
  for (int cols : {24, 300}) {
    Operands operands(GetParam());
    Pair &x = operands.Random("x", 19, cols), &gain = operands.Random("gain", 1, cols),
         &y = operands.Random("y", 19, cols), &rstd = operands.Random("rstd", 19, 1, kSum),
         &dx = operands.Random("dx", 19, cols), &dgain = operands.Random("dgain", 1, cols, kSum);
    operands.ExpectSame([&](auto of) {
      return compute::RmsNorm{.x = of(x), .gain = of(gain), .y = of(y), .rstd = of(rstd)};
    });
    operands.ExpectSame([&](auto of) {
      return compute::RmsNormGradient{.dy = of(y),
                                      .x = of(x),
                                      .gain = of(gain),
                                      .rstd = of(rstd),
                                      .dx = of(dx),
                                      .dgain = of(dgain)};
    });
  }
}

TEST_P(Kernels, Rope) {
  Pair &x = operands_.Random("x", 10, 36),
       &positions = operands_.Indices("positions", {0, 1, 2, 5000, 131071});
  for (bool back : {false, true}) {
    operands_.ExpectSame([&](auto of) {
      return compute::Rope{.x = of(x), .positions = of(positions), .head_size = 12, .back = back};
    });
  }
}

TEST_P(Kernels, Activations) {
  for (Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kRelu, Activation::kSquaredRelu}) {
    for (bool gated : {false, true}) {
      Operands operands(GetParam());
      Pair &x = operands.Random("x", 9, gated ? 70 : 35, Element::kValue, -4, 4),
           &y = operands.Random("y", 9, 35), &dx = operands.Random("dx", 9, gated ? 70 : 35);
      operands.ExpectSame([&](auto of) {
        return compute::Activate{.x = of(x), .y = of(y), .activation = activation, .gated = gated};
      });
      operands.ExpectSame([&](auto of) {
        return compute::ActivationGradient{
            .dy = of(y), .x = of(x), .dx = of(dx), .activation = activation, .gated = gated};
      });
    }
  }
}

// Grouped queries; heads that do not fill the threads of a share; two blocks of keys that arrive in
// any order, of which one is of later tokens for half of the queries; a window; more than one block
// of threads.
TEST_P(Kernels, Attention) {
  for (const std::int64_t head_size : {4, 72, 136}) {
    Operands operands(GetParam());
    constexpr std::int64_t kTokens = 35, kKeys = 19;
    const std::int64_t sequences = head_size == 4 ? 2 : 1;
    const AttentionLayout layout{.sequences = sequences,
                                 .head_size = head_size,
                                 .heads = 4,
                                 .groups = 2,
                                 .scale = 1 / std::sqrt(double(head_size)),
                                 .window = head_size == 72 ? 25 : 0};
    std::vector<std::int32_t> query_positions, first_positions, second_positions;
    for (int i = 0; i < kTokens; ++i) query_positions.push_back(i < 15 ? i : i + 9);
    for (int i = 0; i < kKeys; ++i) first_positions.push_back(i + 19);
    for (int i = 0; i < kKeys; ++i) second_positions.push_back(i);
    Pair &q = operands.Random("q", sequences * kTokens, 4 * head_size),
         &k1 = operands.Random("k1", sequences * kKeys, 2 * head_size),
         &v1 = operands.Random("v1", sequences * kKeys, 2 * head_size),
         &k2 = operands.Random("k2", sequences * kKeys, 2 * head_size),
         &v2 = operands.Random("v2", sequences * kKeys, 2 * head_size),
         &queries = operands.Indices("query positions", query_positions),
         &keys1 = operands.Indices("key positions 1", first_positions),
         &keys2 = operands.Indices("key positions 2", second_positions),
         &accumulated = operands.Same("accumulated", sequences * kTokens, 4 * head_size, kSum, 0),
         &maximum = operands.Same("maximum", sequences * kTokens, 4, kSum,
                                  -std::numeric_limits<double>::infinity()),
         &sum = operands.Same("sum", sequences * kTokens, 4, kSum, 0),
         &output = operands.Random("output", sequences * kTokens, 4 * head_size),
         &log_sum = operands.Random("log sum", sequences * kTokens, 4, kSum),
         &doutput = operands.Random("doutput", sequences * kTokens, 4 * head_size),
         &row_sums = operands.Random("row sums", sequences * kTokens, 4, kSum),
         &dq = operands.Random("dq", sequences * kTokens, 4 * head_size),
         &dk = operands.Random("dk", sequences * kKeys, 2 * head_size),
         &dv = operands.Random("dv", sequences * kKeys, 2 * head_size);
    for (bool first : {true, false}) {
      operands.ExpectSame([&](auto of) {
        return compute::AttendBlock{.layout = layout,
                                    .q = of(q),
                                    .k = of(first ? k1 : k2),
                                    .v = of(first ? v1 : v2),
                                    .query_positions = of(queries),
                                    .key_positions = of(first ? keys1 : keys2),
                                    .output = of(accumulated),
                                    .maximum = of(maximum),
                                    .sum = of(sum)};
      });
    }
    operands.ExpectSame([&](auto of) {
      return compute::FinishAttention{.layout = layout,
                                      .accumulated = of(accumulated),
                                      .maximum = of(maximum),
                                      .sum = of(sum),
                                      .output = of(output),
                                      .log_sum = of(log_sum)};
    });
    operands.ExpectSame([&](auto of) {
      return compute::AttentionRowSums{
          .layout = layout, .output = of(output), .doutput = of(doutput), .sums = of(row_sums)};
    });
    for (bool first : {true, false}) {
      operands.ExpectSame([&](auto of) {
        return compute::AttentionGradient{.layout = layout,
                                          .q = of(q),
                                          .k = of(first ? k1 : k2),
                                          .v = of(first ? v1 : v2),
                                          .query_positions = of(queries),
                                          .key_positions = of(first ? keys1 : keys2),
                                          .log_sum = of(log_sum),
                                          .row_sums = of(row_sums),
                                          .doutput = of(doutput),
                                          .dq = of(dq),
                                          .dk = of(dk),
                                          .dv = of(dv)};
      });
    }
  }
}

// Tokens that come more than once, and those of another rank.
TEST_P(Kernels, Embedding) {
  Pair &table = operands_.Random("table", 11, 300), &y = operands_.Random("y", 9, 300),
       &dtable = operands_.Random("dtable", 11, 300, kSum),
       &ids = operands_.Indices("ids", {3, -1, 10, 3, 0, 3, -1, 10, 7});
  operands_.ExpectSame(
      [&](auto of) { return compute::Embed{.table = of(table), .ids = of(ids), .y = of(y)}; });
  operands_.ExpectSame([&](auto of) {
    return compute::EmbeddingGradient{.dy = of(y), .ids = of(ids), .dtable = of(dtable)};
  });
}

TEST_P(Kernels, LayerNorm) {
  Pair &x = operands_.Random("x", 5, 300), &gain = operands_.Random("gain", 1, 300),
       &bias = operands_.Random("bias", 1, 300), &y = operands_.Random("y", 5, 300),
       &mean = operands_.Random("mean", 1, 5, kSum), &rstd = operands_.Random("rstd", 1, 5, kSum),
       &dx = operands_.Random("dx", 5, 300), &dgain = operands_.Random("dgain", 1, 300, kSum),
       &dbias = operands_.Random("dbias", 1, 300, kSum);
  operands_.ExpectSame([&](auto of) {
    return compute::LayerNorm{.x = of(x),
                              .gain = of(gain),
                              .bias = of(bias),
                              .y = of(y),
                              .mean = of(mean),
                              .rstd = of(rstd)};
  });
  operands_.ExpectSame([&](auto of) {
    return compute::LayerNormGradient{.dy = of(y),
                                      .x = of(x),
                                      .gain = of(gain),
                                      .mean = of(mean),
                                      .rstd = of(rstd),
                                      .dx = of(dx),
                                      .dgain = of(dgain),
                                      .dbias = of(dbias)};
  });
}

// Three of eight experts for seven tokens, some with equal logits; each copy in a slot of its own.
TEST_P(Kernels, Experts) {
  for (const bool normalize : {false, true}) {
    Operands operands(GetParam());
    std::vector<std::int32_t> in_slots;
    for (int i = 0; i < 21; ++i) in_slots.push_back(i * 8 % 21);
    Pair &logits = operands.Random("logits", 7, 8, Element::kValue, -2, 2),
         &equal = operands.Same("equal logits", 7, 8, Element::kValue, 0.5),
         &chosen = operands.Indices("chosen", std::vector<std::int32_t>(21, 0)),
         &weights = operands.Random("weights", 7, 3, kSum),
         &dweights = operands.Random("dweights", 7, 3, kSum),
         &dlogits = operands.Random("dlogits", 7, 8), &rows = operands.Random("rows", 21, 300),
         &drows = operands.Random("drows", 21, 300), &y = operands.Random("y", 7, 300),
         &slots = operands.Indices("slots", in_slots);
    for (Pair* pair : {&chosen, &slots}) {
      pair->cpu = pair->cpu.Shaped(7, 3);
      pair->gpu = pair->gpu.Shaped(7, 3);
    }
    for (Pair* of_tokens : {&logits, &equal}) {
      operands.ExpectSame([&](auto of) {
        return compute::Route{.logits = of(*of_tokens),
                              .chosen = of(chosen),
                              .weights = of(weights),
                              .normalize = normalize};
      });
      EXPECT_EQ(std::memcmp(chosen.cpu.data, chosen.gpu.data, std::size_t(chosen.cpu.bytes())), 0);
      operands.ExpectSame([&](auto of) {
        return compute::RouteGradient{.logits = of(*of_tokens),
                                      .chosen = of(chosen),
                                      .dweights = of(dweights),
                                      .dlogits = of(dlogits),
                                      .normalize = normalize};
      });
    }
    operands.ExpectSame([&](auto of) {
      return compute::CombineRows{
          .rows = of(rows), .slots = of(slots), .weights = of(weights), .y = of(y)};
    });
    operands.ExpectSame([&](auto of) {
      return compute::CombineRows{.rows = of(rows), .slots = of(slots), .weights = {}, .y = of(y)};
    });
    operands.ExpectSame([&](auto of) {
      return compute::CombineRowsGradient{.dy = of(y),
                                          .rows = of(rows),
                                          .slots = of(slots),
                                          .weights = of(weights),
                                          .drows = of(drows),
                                          .dweights = of(dweights)};
    });
  }
}

// All columns words, some padding, and nothing but padding.
TEST_P(Kernels, CrossEntropy) {
  for (std::int64_t words : {310, 300, 0}) {
    Operands operands(GetParam());
    Pair &logits = operands.Random("logits", 5, 310, Element::kValue, -8, 8),
         &labels = operands.Indices("labels", {0, -1, words > 0 ? 299 : -1, -1, -1}),
         &maximum = operands.Random("maximum", 5, 1, kSum),
         &sum = operands.Random("sum", 5, 1, kSum),
         &label_logit = operands.Random("label logit", 5, 1, kSum),
         &loss = operands.Random("loss", 5, 1, kSum),
         &gradient = operands.Random("gradient", 5, 310);
    operands.ExpectSame([&](auto of) {
      return compute::RowMaximum{.logits = of(logits), .words = words, .maximum = of(maximum)};
    });
    operands.ExpectSame([&](auto of) {
      return compute::CrossEntropySums{.logits = of(logits),
                                       .labels = of(labels),
                                       .maximum = of(maximum),
                                       .words = words,
                                       .sum = of(sum),
                                       .label_logit = of(label_logit)};
    });
    if (words == 0) continue;  // another rank has words, and its sums are added before the rest
    operands.ExpectSame([&](auto of) {
      return compute::TokenLoss{
          .maximum = of(maximum), .sum = of(sum), .label_logit = of(label_logit), .loss = of(loss)};
    });
    operands.ExpectSame([&](auto of) {
      return compute::CrossEntropyGradient{.logits = of(logits),
                                           .labels = of(labels),
                                           .maximum = of(maximum),
                                           .sum = of(sum),
                                           .words = words,
                                           .share = 0.125,
                                           .gradient = of(gradient)};
    });
  }
}

TEST_P(Kernels, Adam) {
  Pair &gradient = operands_.Random("gradient", 1, 500, kSum),
       &moment1 = operands_.Random("moment 1", 1, 500, kSum),
       &moment2 = operands_.Random("moment 2", 1, 500, kSum, 0.1, 1),
       &weights = operands_.Random("weights", 1, 500),
       &master = operands_.Random("master", 1, 500, kSum);
  for (bool with_master : {false, true}) {
    operands_.ExpectSame([&](auto of) {
      return compute::AdamUpdate{.gradient = of(gradient),
                                 .moment1 = of(moment1),
                                 .moment2 = of(moment2),
                                 .weights = of(weights),
                                 .master = with_master ? of(master) : View(),
                                 .rate = 0.1,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .epsilon = 1e-8,
                                 .correction1 = 0.19,
                                 .correction2 = 0.0975};
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Kernels,
                         testing::Values(ElementType::kFp64, ElementType::kFp32,
                                         ElementType::kBf16),
                         [](const auto& param) { return std::string(Name(param.param)); });

}  // namespace
}  // namespace millwright
