// SPDX-License-Identifier: Apache-2.0
#include "validate/source_class.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

namespace millwright {
namespace {

constexpr std::string_view kOwn = "millwright-";  // what `measure` has measured

bool IsVersion(std::string_view part) {
  return !part.empty() && std::isdigit(static_cast<unsigned char>(part[0])) != 0;
}

}  // namespace

std::string StackOf(const std::string& source) {
  const std::string_view text = source;
  const std::string_view collection = text.substr(0, text.find(':'));
  if (collection.size() == text.size() || collection.find(' ') != text.npos) {
    const std::string_view first = text.substr(0, text.find(' '));
    const std::size_t last = text.rfind(' ');
    return std::string(first) +
           (last == text.npos ? std::string() : " " + std::string(text.substr(last + 1)));
  }
  if (collection != "aic") return std::string(collection);
  // aic:GPU/KIND/STACK/VERSION:KERNEL
  std::string stack;
  std::string_view rest = text.substr(collection.size() + 1);
  rest.remove_prefix(std::min(rest.size(), rest.find('/') + 1));
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find_first_of("/:"), rest.size());
    const std::string_view part = rest.substr(0, end);
    if (!IsVersion(part)) stack += (stack.empty() ? "" : "/") + std::string(part);
    rest.remove_prefix(std::min(rest.size(), end + 1));
  }
  return stack;
}

const char* ClocksOf(const std::string& source) {
  if (source.starts_with("simumax:") || source.starts_with("vidur:")) return "sustained";
  if (source.starts_with(kOwn)) {
    return source.substr(0, source.find(':')).ends_with("-burst") ? "burst" : "sustained";
  }
  const bool sglang = source.find("/gemm/sglang/") != std::string::npos;
  return sglang && source.find("deepgemm") == std::string::npos ? "warm" : "burst";
}

std::string CurveDtype(const std::string& dtype) {
  return dtype == "float16" || dtype == "half" ? "bfloat16" : dtype;
}

bool HoldsCast(const std::string& dtype, const std::string& source) {
  if (source.starts_with("millwright"))
    return false;  // measured with operands that are cast before
  if (dtype == "fp8_block") return source.find("sglang") != std::string::npos;
  return dtype == "fp8" || dtype == "nvfp4";
}

std::string LibraryOf(const MeasuredCollective& collective) {
  const std::string_view library = collective.library;
  if (library.starts_with("nccl-tests")) return "nccl-tests";
  if (library.starts_with(kOwn)) return std::string(library.substr(0, library.find(' ')));
  if (library.starts_with("custom")) {
    // "custom allreduce vLLM_custom_graph vllm 0.24.0"
    const std::size_t third = library.find(' ', library.find(' ') + 1);
    if (third == library.npos) return "custom";
    const std::string_view name = library.substr(third + 1);
    return std::string(name.substr(0, name.find(' ')));
  }
  return collective.topology.find("pairwise") == std::string::npos ? "torch" : "torch, pairs";
}

bool IsRecent(const MeasuredCollective& collective) {
  constexpr std::string_view kStated = "rows say 2.";
  const std::string_view library = collective.library;
  const std::size_t at = library.find(kStated);
  int minor = 0;
  if (at != library.npos) {
    std::from_chars(library.data() + at + kStated.size(), library.data() + library.size(), minor);
  }
  return minor >= 29;
}

std::string FabricOf(const MeasuredCollective& collective) {
  if (collective.nodes < 2) return "";
  std::string fabric = "other";
  for (const char* name : {"TCPXO", "TCPX", "EFA", "RoCE", "IB", "Azure"}) {
    if (collective.topology.find(name) != std::string::npos) {
      fabric = name;
      break;
    }
  }
  if (collective.library.find("IB_QPS") != std::string::npos) fabric += ", more queue pairs";
  return collective.gpus == collective.nodes ? fabric + ", one GPU a node" : fabric;
}

const CollectiveKind* KindOf(const std::string& op) {
  struct Named {
    std::string_view name;
    CollectiveKind kind;
  };
  static constexpr std::array<Named, 6> kKinds{{{"all_reduce", CollectiveKind::kAllReduce},
                                                {"all_gather", CollectiveKind::kAllGather},
                                                {"reduce_scatter", CollectiveKind::kReduceScatter},
                                                {"alltoall", CollectiveKind::kAllToAll},
                                                {"sendrecv", CollectiveKind::kSendRecv},
                                                {"broadcast", CollectiveKind::kBroadcast}}};
  for (const Named& named : kKinds) {
    if (named.name == op) return &named.kind;
  }
  return nullptr;
}

}  // namespace millwright
