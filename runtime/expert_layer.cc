// SPDX-License-Identifier: Apache-2.0
#include "runtime/expert_layer.h"

#include <numeric>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

constexpr const char* kWeights = "expert weights";

std::int64_t Sum(std::span<const std::int64_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

// Elements of so many rows.
std::vector<std::int64_t> Times(std::vector<std::int64_t> rows, std::int64_t cols) {
  for (std::int64_t& count : rows) count *= cols;
  return rows;
}

// Calls visit(expert, first row, rows) for each expert of this rank that has any.
template <class Visit>
void ForExperts(const Routes& routes, const Visit& visit) {
  std::int64_t at = 0;
  for (std::size_t expert = 0; expert < routes.of_expert.size(); ++expert) {
    const std::int64_t rows = routes.of_expert[expert];
    if (rows > 0) visit(std::int64_t(expert), at, rows);
    at += rows;
  }
}

}  // namespace

// --- Where tokens go

void ExpertLayer::Route(const Unit& unit, ConstView x, SavedExperts& saved) {
  const MixtureOfExperts& moe = workload_.model.moe;
  saved.logits = Tensor(backend_, x.rows, moe.num_experts);
  saved.routes.chosen = Tensor(backend_, x.rows, moe.topk, Element::kIndex);
  saved.routes.weights = Tensor(backend_, x.rows, moe.topk, Element::kSum);
  backend_.Run(compute::Linear{.x = x, .w = unit.weight("router"), .y = saved.logits});
  if (unit.has("router_bias")) {
    backend_.Run(compute::AddBias{.bias = unit.weight("router_bias"), .x = saved.logits});
  }
  backend_.Run(compute::Route{.logits = saved.logits,
                              .chosen = saved.routes.chosen,
                              .weights = saved.routes.weights,
                              .normalize = moe.normalize_topk});
}

void ExpertLayer::RouteBackward(const Unit& unit, SavedExperts& saved, View dx) {
  saved.dlogits = Tensor(backend_, saved.logits.rows(), saved.logits.cols());
  backend_.Run(compute::RouteGradient{.logits = saved.logits,
                                      .chosen = saved.routes.chosen,
                                      .dweights = saved.dweights,
                                      .dlogits = saved.dlogits,
                                      .normalize = workload_.model.moe.normalize_topk});
  backend_.Run(compute::LinearInputGradient{
      .dy = saved.dlogits, .w = unit.weight("router"), .dx = dx, .add = true});
}

void ExpertLayer::RouterGradient(Unit& unit, ConstView x, const SavedExperts& saved) {
  backend_.Run(
      compute::LinearWeightGradient{.dy = saved.dlogits, .x = x, .dw = unit.gradient("router")});
  if (unit.has("router_bias")) {
    backend_.Run(compute::AddColumns{.from = saved.dlogits, .to = unit.gradient("router_bias")});
  }
}

std::vector<std::int64_t> ExpertLayer::CountsOfAll(std::span<const std::int64_t> own) {
  const RankGroup& group = groups_.experts;
  if (group.ranks == 1) return {own.begin(), own.end()};
  const auto experts = std::int64_t(own.size());
  const std::vector<double> numbers(own.begin(), own.end());
  Tensor all(backend_, group.ranks, experts, Element::kSum);
  backend_.Upload(std::span<const double>(numbers),
                  all.view().Rows(IndexIn(group, backend_.rank()), 1));
  backend_.Collective("expert token counts", CollectiveKind::kAllGather, group, all);
  std::vector<std::int64_t> counts;
  for (double number : backend_.Download(all)) counts.push_back(std::int64_t(number));
  return counts;
}

Tensor ExpertLayer::Indices(std::span<const std::int32_t> values, std::int64_t cols) {
  Tensor tensor(backend_, std::int64_t(values.size()) / cols, cols, Element::kIndex);
  backend_.Upload(values, tensor);
  return tensor;
}

Tensor ExpertLayer::Permute(ConstView x, SavedExperts& saved) {
  Routes& routes = saved.routes;
  const std::int64_t topk = workload_.model.moe.topk;
  const auto experts = std::size_t(workload_.model.moe.num_experts);
  const std::vector<double> chosen = backend_.Download(routes.chosen);
  std::vector<std::int64_t> own(experts);
  for (double expert : chosen) ++own[std::size_t(expert)];
  std::vector<std::int64_t> next(experts);  // slot of each expert's next row
  std::exclusive_scan(own.begin(), own.end(), next.begin(), std::int64_t{0});
  std::vector<std::int32_t> slots, tokens(chosen.size()), copies(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::int64_t slot = next[std::size_t(chosen[i])]++;
    slots.push_back(std::int32_t(slot));
    tokens[std::size_t(slot)] = std::int32_t(std::int64_t(i) / topk);
    copies[std::size_t(slot)] = std::int32_t(i);
  }
  routes.slots = Indices(slots, topk);
  routes.tokens = Indices(tokens);
  routes.copies = Indices(copies);
  PlanArrivals(CountsOfAll(own), routes);
  SendWeights(saved);
  Tensor rows(backend_, routes.tokens.rows(), hidden());
  backend_.Run(compute::Embed{.table = x, .ids = routes.tokens, .y = rows});
  return rows;
}

// Rows arrive by expert-tensor rank, of each by expert rank that sent them, and of each by expert.
void ExpertLayer::PlanArrivals(std::span<const std::int64_t> counts, Routes& routes) {
  const int expert_ranks = groups_.expert.ranks, tensor_ranks = groups_.expert_tensor.ranks;
  const int local = local_experts(), all = workload_.model.moe.num_experts;
  const auto count = [&](int expert_rank, int tensor_rank, int expert) {
    const std::int64_t source = std::int64_t{1} * expert_rank * tensor_ranks + tensor_rank;
    return counts[std::size_t(source * all + expert)];
  };
  const int x = groups_.place.expert_tensor, first = first_expert();
  routes.sent.assign(std::size_t(expert_ranks), 0);
  routes.received = routes.sent;
  routes.gathered.assign(std::size_t(tensor_ranks), 0);
  routes.of_expert.assign(std::size_t(local), 0);
  for (int rank = 0; rank < expert_ranks; ++rank) {
    for (int e = 0; e < local; ++e) {
      routes.sent[std::size_t(rank)] += count(groups_.place.expert, x, rank * local + e);
      routes.received[std::size_t(rank)] += count(rank, x, first + e);
    }
  }
  struct Block {
    std::int64_t first, rows;
  };
  std::vector<std::vector<Block>> of_expert(std::size_t(local), std::vector<Block>{});
  std::int64_t arrived = 0;
  for (int tensor_rank = 0; tensor_rank < tensor_ranks; ++tensor_rank) {
    for (int rank = 0; rank < expert_ranks; ++rank) {
      for (int e = 0; e < local; ++e) {
        const std::int64_t rows = count(rank, tensor_rank, first + e);
        of_expert[std::size_t(e)].push_back({arrived, rows});
        routes.gathered[std::size_t(tensor_rank)] += rows;
        routes.of_expert[std::size_t(e)] += rows;
        arrived += rows;
      }
    }
  }
  routes.sorted = {};
  routes.unsorted = {};
  if (local == 1 || groups_.experts.ranks == 1) return;
  std::vector<std::int32_t> sorted, unsorted(std::size_t(arrived), 0);
  for (const std::vector<Block>& blocks : of_expert) {
    for (const Block& block : blocks) {
      for (std::int64_t row = block.first; row < block.first + block.rows; ++row) {
        unsorted[std::size_t(row)] = std::int32_t(sorted.size());
        sorted.push_back(std::int32_t(row));
      }
    }
  }
  routes.sorted = Indices(sorted);
  routes.unsorted = Indices(unsorted);
}

void ExpertLayer::SendWeights(SavedExperts& saved) {
  const Routes& routes = saved.routes;
  const Tensor of_tokens = std::move(saved.routes.weights);
  Tensor weights(backend_, of_tokens.size(), 1, Element::kSum);
  backend_.Run(compute::Embed{
      .table = of_tokens.view().Shaped(of_tokens.size(), 1), .ids = routes.copies, .y = weights});
  if (groups_.expert.ranks > 1) weights = Dispatch(kWeights, weights, saved);
  if (groups_.expert_tensor.ranks > 1) weights = Gather(kWeights, weights, saved);
  saved.row_weights = Taken(std::move(weights), routes.sorted);
  std::vector<std::int32_t> numbers(std::size_t(saved.row_weights.rows()));
  std::iota(numbers.begin(), numbers.end(), 0);
  saved.row_numbers = Indices(numbers);
}

void ExpertLayer::ReturnWeightGradients(SavedExperts& saved) {
  const Routes& routes = saved.routes;
  Tensor gradients = Taken(std::move(saved.drow_weights), routes.unsorted);
  if (groups_.expert_tensor.ranks > 1) gradients = Scatter(kWeights, std::move(gradients), saved);
  if (groups_.expert.ranks > 1) gradients = Combine(kWeights, gradients, saved);
  saved.dweights = Tensor(backend_, routes.slots.rows(), routes.slots.cols(), Element::kSum);
  backend_.Run(compute::Embed{.table = gradients,
                              .ids = routes.slots,
                              .y = saved.dweights.view().Shaped(saved.dweights.size(), 1)});
}

Tensor ExpertLayer::Weighted(ConstView activated, const SavedExperts& saved) {
  Tensor y(backend_, activated.rows, activated.cols);
  if (y.empty()) return y;
  backend_.Run(compute::CombineRows{
      .rows = activated, .slots = saved.row_numbers, .weights = saved.row_weights, .y = y});
  return y;
}

Tensor ExpertLayer::WeightedBackward(ConstView dy, ConstView activated, SavedExperts& saved) {
  Tensor dx(backend_, dy.rows, dy.cols);
  Tensor dweights(backend_, dy.rows, 1, Element::kSum);
  if (!dx.empty()) {
    backend_.Run(compute::CombineRowsGradient{.dy = dy,
                                              .rows = activated,
                                              .slots = saved.row_numbers,
                                              .weights = saved.row_weights,
                                              .drows = dx,
                                              .dweights = dweights});
  }
  if (saved.drow_weights.empty()) {
    saved.drow_weights = std::move(dweights);
  } else {
    backend_.Run(compute::Add{.from = dweights, .to = saved.drow_weights});
  }
  return dx;
}

Tensor ExpertLayer::PermuteBackward(ConstView drows, SavedExperts& saved) {
  ReturnWeightGradients(saved);
  Tensor dx(backend_, saved.routes.slots.rows(), hidden());
  backend_.Run(
      compute::CombineRows{.rows = drows, .slots = saved.routes.slots, .weights = {}, .y = dx});
  return dx;
}

Tensor ExpertLayer::Unpermute(ConstView rows, const SavedExperts& saved) {
  Tensor y(backend_, saved.routes.slots.rows(), hidden());
  backend_.Run(
      compute::CombineRows{.rows = rows, .slots = saved.routes.slots, .weights = {}, .y = y});
  return y;
}

Tensor ExpertLayer::UnpermuteBackward(ConstView dy, const SavedExperts& saved) {
  Tensor drows(backend_, saved.routes.tokens.rows(), hidden());
  backend_.Run(compute::Embed{.table = dy, .ids = saved.routes.tokens, .y = drows});
  return drows;
}

RoutedRows ExpertLayer::Count(const SavedExperts& saved) const {
  const Routes& routes = saved.routes;
  const std::int64_t sent = Sum(routes.sent);
  return {.sent = sent,
          .away = sent - routes.sent[std::size_t(groups_.place.expert)],
          .received = Sum(routes.received),
          .gathered = Sum(routes.gathered)};
}

// --- The way there and back

Tensor ExpertLayer::Dispatch(std::string_view name, ConstView rows, const SavedExperts& saved) {
  const Routes& routes = saved.routes;
  Tensor arrived(backend_, Sum(routes.received), rows.cols, rows.element);
  backend_.AllToAll(name, groups_.expert, rows, Times(routes.sent, rows.cols), arrived,
                    Times(routes.received, rows.cols));
  return arrived;
}

Tensor ExpertLayer::Combine(std::string_view name, ConstView rows, const SavedExperts& saved) {
  const Routes& routes = saved.routes;
  Tensor back(backend_, Sum(routes.sent), rows.cols, rows.element);
  backend_.AllToAll(name, groups_.expert, rows, Times(routes.received, rows.cols), back,
                    Times(routes.sent, rows.cols));
  return back;
}

Tensor ExpertLayer::Gather(std::string_view name, ConstView rows, const SavedExperts& saved) {
  const std::vector<std::int64_t>& of_rank = saved.routes.gathered;
  const std::int64_t before =
      Sum(std::span(of_rank).first(std::size_t(groups_.place.expert_tensor)));
  Tensor all(backend_, Sum(of_rank), rows.cols, rows.element);
  backend_.Run(compute::Copy{.from = rows, .to = all.view().Rows(before, rows.rows)});
  backend_.Collective(name, CollectiveKind::kAllGather, groups_.expert_tensor, all,
                      Times(of_rank, rows.cols));
  return all;
}

Tensor ExpertLayer::Scatter(std::string_view name, Tensor rows, const SavedExperts& saved) {
  const std::vector<std::int64_t>& of_rank = saved.routes.gathered;
  const auto own = std::size_t(groups_.place.expert_tensor);
  backend_.Collective(name, CollectiveKind::kReduceScatter, groups_.expert_tensor, rows,
                      Times(of_rank, rows.cols()));
  return Tensor::CopyOf(backend_,
                        rows.view().Rows(Sum(std::span(of_rank).first(own)), of_rank[own]));
}

// --- The experts

// Row i of the result is row ids[i].
Tensor ExpertLayer::Taken(Tensor rows, ConstView ids) {
  if (ids.empty()) return rows;
  Tensor taken(backend_, rows.rows(), rows.cols(), rows.view().element);
  backend_.Run(compute::Embed{.table = rows, .ids = ids, .y = taken});
  return taken;
}

Tensor ExpertLayer::Products(const Unit& unit, std::string_view weight, ConstView x,
                             const Routes& routes) {
  const ConstView w = unit.weight(weight);
  const std::int64_t features = w.rows / local_experts();
  Tensor y(backend_, x.rows, features);
  std::vector<LinearPart> parts;
  ForExperts(routes, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
    parts.push_back({.tensor = first_expert() + expert,
                     .x = x.Rows(first, rows),
                     .w = w.Rows(expert * features, features),
                     .to = y.view().Rows(first, rows)});
  });
  linear_.Forward(parts);
  return y;
}

Tensor ExpertLayer::InputGradients(const Unit& unit, std::string_view weight, ConstView dy,
                                   const Routes& routes) {
  const ConstView w = unit.weight(weight);
  const std::int64_t features = w.rows / local_experts();
  Tensor dx(backend_, dy.rows, w.cols);
  std::vector<LinearPart> parts;
  ForExperts(routes, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
    parts.push_back({.tensor = first_expert() + expert,
                     .w = w.Rows(expert * features, features),
                     .dy = dy.Rows(first, rows),
                     .to = dx.view().Rows(first, rows)});
  });
  linear_.InputGradient(parts);
  return dx;
}

void ExpertLayer::WeightGradients(Unit& unit, std::string_view weight, std::string_view bias,
                                  ConstView dy, ConstView x, const Routes& routes) {
  const View dw = unit.gradient(weight);
  const std::int64_t features = dw.rows / local_experts();
  std::vector<LinearPart> parts;
  ForExperts(routes, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
    parts.push_back({.tensor = first_expert() + expert,
                     .x = x.Rows(first, rows),
                     .dy = dy.Rows(first, rows),
                     .to = dw.Rows(expert * features, features)});
    if (!unit.has(bias)) return;
    backend_.Run(compute::AddColumns{.from = dy.Rows(first, rows),
                                     .to = unit.gradient(bias).Part(expert * features, features)});
  });
  linear_.WeightGradient(parts);
}

void ExpertLayer::AddBiases(const Unit& unit, std::string_view bias, View y, const Routes& routes) {
  if (!unit.has(bias)) return;
  ForExperts(routes, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
    backend_.Run(compute::AddBias{.bias = unit.weight(bias).Part(expert * y.cols, y.cols),
                                  .x = y.Rows(first, rows)});
  });
}

void ExpertLayer::Fc1(const Unit& unit, Tensor rows, SavedExperts& saved) {
  saved.input = Taken(std::move(rows), saved.routes.sorted);
  saved.fc1 = Products(unit, "expert_fc1", saved.input, saved.routes);
  AddBiases(unit, "expert_fc1_bias", saved.fc1, saved.routes);
}

Tensor ExpertLayer::Fc1Backward(const Unit& unit, Tensor dy, SavedExperts& saved) {
  saved.dfc1 = std::move(dy);
  return Taken(InputGradients(unit, "expert_fc1", saved.dfc1, saved.routes), saved.routes.unsorted);
}

void ExpertLayer::Fc1Weights(Unit& unit, const SavedExperts& saved) {
  WeightGradients(unit, "expert_fc1", "expert_fc1_bias", saved.dfc1, saved.input, saved.routes);
}

Tensor ExpertLayer::OutputBiases(const Unit& unit, const SavedExperts& saved) {
  std::vector<std::int32_t> experts;
  ForExperts(saved.routes, [&](std::int64_t expert, std::int64_t, std::int64_t rows) {
    experts.insert(experts.end(), std::size_t(rows), std::int32_t(expert));
  });
  Tensor biases(backend_, std::int64_t(experts.size()), hidden());
  if (biases.empty()) return biases;
  backend_.Run(
      compute::Embed{.table = unit.weight("expert_fc2_bias").Shaped(local_experts(), hidden()),
                     .ids = Indices(experts),
                     .y = biases});
  return biases;
}

Tensor ExpertLayer::Fc2(const Unit& unit, const SavedExperts& saved) {
  Tensor y = Products(unit, "expert_fc2", saved.fc2_input, saved.routes);
  if (adds_output_bias(unit) && !y.empty()) {
    const Tensor biases = Weighted(OutputBiases(unit, saved), saved);
    backend_.Run(compute::Add{.from = biases, .to = y});
  }
  return Taken(std::move(y), saved.routes.unsorted);
}

Tensor ExpertLayer::Fc2Backward(const Unit& unit, Tensor dy, SavedExperts& saved) {
  saved.dfc2 = Taken(std::move(dy), saved.routes.sorted);
  if (adds_output_bias(unit)) {
    WeightedBackward(saved.dfc2, OutputBiases(unit, saved), saved);
  }
  return InputGradients(unit, "expert_fc2", saved.dfc2, saved.routes);
}

void ExpertLayer::Fc2Weights(Unit& unit, const SavedExperts& saved) {
  WeightGradients(unit, "expert_fc2", "", saved.dfc2, saved.fc2_input, saved.routes);
  if (!adds_output_bias(unit) || saved.dfc2.empty()) return;
  const Tensor weighted = Weighted(saved.dfc2, saved);
  const View dbias = unit.gradient("expert_fc2_bias").Shaped(local_experts(), hidden());
  ForExperts(saved.routes, [&](std::int64_t expert, std::int64_t first, std::int64_t rows) {
    backend_.Run(compute::AddColumns{.from = weighted.view().Rows(first, rows),
                                     .to = dbias.Rows(expert, 1)});
  });
}

}  // namespace millwright
