// SPDX-License-Identifier: Apache-2.0
#include "validate/measurement_csv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cost_models/collectives.h"
#include "validate/measurement_files.h"
#include "validate/source_class.h"

namespace millwright {
namespace {

std::string Cell(const std::string& text) {
  if (text.find_first_of(",\"") == text.npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

double Microseconds(Seconds time) { return time.value * 1e6; }

// A row's cells in the order of its table's columns.
struct LineOf {
  const Measurement& row;

  std::string operator()(const MeasuredGemm& g) const {
    return fmt::format("{},{},{},{},{},{:.6g},{}", Cell(row.gpu), Cell(row.dtype), g.m, g.n, g.k,
                       Microseconds(row.time), Cell(row.source));
  }
  std::string operator()(const MeasuredAttention& a) const {
    return fmt::format("{},{},{},{},{},{},{},{},{},{},{:.6g},{}", Cell(row.gpu), Cell(row.dtype),
                       Name(a.phase), a.batch, a.seq_q, a.seq_kv, a.heads, a.kv_heads, a.head_dim,
                       a.causal ? 1 : 0, Microseconds(row.time), Cell(row.source));
  }
  std::string operator()(const MeasuredCollective& c) const {
    const CollectiveKind* kind = KindOf(c.op);
    const double algorithm = c.bytes.value / row.time.value / 1e9;
    const double bus =
        kind == nullptr ? algorithm : algorithm * RingBytesSentFactor(*kind, int(c.gpus));
    return fmt::format("{},{},{},{},{},{},{:.0f},{:.6g},{:.6g},{:.6g},{},{}", Cell(row.gpu),
                       Cell(c.topology), c.nodes, c.gpus, c.op, Cell(row.dtype), c.bytes.value,
                       Microseconds(row.time), algorithm, bus, Cell(c.library), Cell(row.source));
  }
  std::string operator()(const MeasuredMoe& m) const {
    return fmt::format("{},{},{},{},{},{},{},{},{},{},{:.6g},{}", Cell(row.gpu), Cell(row.dtype),
                       m.tokens, m.hidden, m.inter, m.topk, m.experts, m.tensor, m.expert,
                       Cell(m.distribution), Microseconds(row.time), Cell(row.source));
  }
  std::string operator()(const MeasuredGroupedGemm& g) const {
    return fmt::format("{},{},{},{},{},{},{},{:.6g},{}", Cell(row.gpu), Cell(row.dtype), g.groups,
                       g.m_per_group, g.n, g.k, Name(g.stage), Microseconds(row.time),
                       Cell(row.source));
  }
  std::string operator()(const MeasuredMemoryBound& m) const {
    return fmt::format("{},{},{:.0f},{:.6g},{}", Cell(row.gpu), Cell(m.op), m.bytes.value,
                       Microseconds(row.time), Cell(row.source));
  }
};

}  // namespace

std::string WriteTable(std::span<const Measurement> rows, std::size_t table) {
  std::string text = fmt::format("{}\n", fmt::join(ColumnsOfTable(table), ","));
  for (const Measurement& row : rows) {
    if (row.operation.index() == table) text += std::visit(LineOf{row}, row.operation) + "\n";
  }
  return text;
}

}  // namespace millwright
