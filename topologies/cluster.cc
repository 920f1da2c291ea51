// SPDX-License-Identifier: Apache-2.0
#include "topologies/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/dijkstra_shortest_paths_no_color_map.hpp>
#include <boost/graph/filtered_graph.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <boost/property_map/function_property_map.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "core/check.h"

namespace millwright {
namespace {

// Added to every link's latency when routes are compared, so that of two ways equally long the
// one with fewer links wins, and a link of no latency is no way to run in circles.
constexpr double kHopSeconds = 1e-12;
// A GPU forwards for others only where there is no other way.
constexpr double kForwardSeconds = 1;
// Directed links between switches: some 100 megabytes.
constexpr int kMaxFabricLinks = 1 << 22;

using Adjacency =
    boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, boost::no_property,
                                       boost::no_property, std::int32_t, std::int32_t>;

struct Pipe {
  int from, to;
  double capacity;
};

// Largest flow from vertex 0 to vertex 1.  Capacities are rounded to whole bytes per second:
// push-relabel is exact, and sure to end, on integers.
double MaxFlow(int vertices, std::span<const Pipe> pipes) {
  using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  using Edge = Traits::edge_descriptor;
  using Network = boost::adjacency_list<
      boost::vecS, boost::vecS, boost::directedS, boost::no_property,
      boost::property<boost::edge_capacity_t, long long,
                      boost::property<boost::edge_residual_capacity_t, long long,
                                      boost::property<boost::edge_reverse_t, Edge>>>>;
  Network network(static_cast<std::size_t>(vertices));
  const auto capacity = get(boost::edge_capacity, network);
  const auto reverse = get(boost::edge_reverse, network);
  for (const Pipe& pipe : pipes) {
    const auto from = static_cast<std::size_t>(pipe.from);
    const auto to = static_cast<std::size_t>(pipe.to);
    const Edge there = add_edge(from, to, network).first;
    const Edge back = add_edge(to, from, network).first;
    capacity[there] = std::llround(pipe.capacity);
    capacity[back] = 0;
    reverse[there] = back;
    reverse[back] = there;
  }
  return static_cast<double>(boost::push_relabel_max_flow(network, 0, 1));
}

// Distances of the few vertices that a search has reached.
struct Distances {
  using key_type = int;
  using value_type = double;
  using reference = double;
  using category = boost::read_write_property_map_tag;
  std::unordered_map<int, double>* reached;
};
double get(Distances distances, int vertex) {
  const auto it = distances.reached->find(vertex);
  return it == distances.reached->end() ? std::numeric_limits<double>::max() : it->second;
}
void put(Distances distances, int vertex, double distance) {
  (*distances.reached)[vertex] = distance;
}

int CeilDivide(int a, int b) { return (a + b - 1) / b; }

// Ports that carry `bandwidth`, at least one.
int Ports(double bandwidth, double port) {
  return std::max(1, static_cast<int>(std::lround(bandwidth / port)));
}

struct Tier {
  BytesPerSecond bandwidth{std::numeric_limits<double>::infinity()};
  Seconds latency;
};

// Levels inside a domain, narrowest container first.
enum DomainTier { kLinked, kSamePcieSwitch, kSameSocket, kAcrossSockets, kDomainTiers };
// Levels between domains.
enum FabricTier { kSameLeaf, kSamePod, kAcrossPods, kFabricTiers };

// How a set of groups lies on the machine: all that a profile needs to know.
struct Spread {
  int ranks = 1;
  int domains = 1;
  int min_ranks = std::numeric_limits<int>::max();
  int max_ranks = 0;
  int fewest_pairs = std::numeric_limits<int>::max();  // min ranks of domains with two or more
  int domain_tier = kLinked;
  int fabric_tier = kSameLeaf;

  void AddDomain(int members) {
    min_ranks = std::min(min_ranks, members);
    max_ranks = std::max(max_ranks, members);
    if (members > 1) fewest_pairs = std::min(fewest_pairs, members);
  }
};

}  // namespace

struct Cluster::Graph {
  ClusterConfig config;
  NodeSpeed slowest;  // of any node, in each
  int gpus = 0;
  int per_domain = 0;

  // Vertices of a domain, in this order: GPUs, NVSwitch plane, PCIe switches, sockets, NICs.
  int planes = 0, pcie_switches = 0, sockets = 0, nics = 0;
  int domain_vertices = 0;
  // After the domains: leaves by group and rail, spines by pod, cores.
  int rails = 1, groups = 0, levels = 0;
  int groups_per_pod = 1, pods_per_rail = 1, pods = 0, spines_per_pod = 0, cores = 0;
  int first_leaf = 0, first_spine = 0, first_core = 0, vertices = 0;

  std::vector<Link> links;
  Adjacency adjacency;
  std::vector<int> rail_of;  // of a domain's GPUs
  std::array<Tier, kDomainTiers> domain_tiers;
  std::array<Tier, kFabricTiers> fabric_tiers;

  explicit Graph(ClusterConfig c) : config(std::move(c)) {
    std::string problems;
    for (const ClusterProblem& p : Inconsistencies(config)) {
      problems += fmt::format("{}cluster {}: {}: {}", problems.empty() ? "" : "\n", config.name,
                              p.field, p.what);
    }
    if (!problems.empty()) throw ConfigError(problems);
    slowest = config.slowest();
    Count();
    CheckSize();
    Connect();
    MeasureDomain();
    MeasureFabric();
  }

  // --- Layout -------------------------------------------------------------------------------

  void Count() {
    gpus = static_cast<int>(config.gpus());
    per_domain = config.gpus_per_node;
    planes = config.domain_link == DomainLink::kNvswitch && per_domain > 1 ? 1 : 0;
    pcie_switches = per_domain / config.gpus_per_pcie_switch;
    sockets = config.sockets;
    nics = config.nics_per_node;
    domain_vertices = per_domain + planes + pcie_switches + sockets + nics;
    first_leaf = config.nodes * domain_vertices;
    if (nics > 0 && config.fabric != Fabric::kNone) CountSwitches();
    first_spine = first_leaf + groups * rails;
    first_core = first_spine + pods * spines_per_pod;
    vertices = first_core + cores;
    for (int local = 0; local < per_domain; ++local) rail_of.push_back(FirstNic(local) % rails);
  }

  void CountSwitches() {
    const bool rail_optimized = config.fabric == Fabric::kRailOptimized;
    if (rail_optimized) rails = config.rails > 0 ? config.rails : nics;
    groups = config.fabric == Fabric::kSingleSwitch ? 1 : CeilDivide(config.nodes, NodesPerGroup());
    levels = 1;
    if (groups * rails == 1 || config.levels == 1) return;
    const int ports = config.switch_ports;
    const double port = config.nic_bandwidth.value;
    const int leaf_ports = std::max(1, NodesPerGroup() * (nics / rails));
    const int leaf_uplinks = Ports(LeafUplink(), port);
    // Two levels of p-port switches join at most p x p / 2 NICs without blocking; below a spine
    // of three levels there are (p / 2) x (p / 2).
    const double most_nics = 0.5 * ports * ports;
    levels = config.levels > 0 ? config.levels
                               : (1.0 * groups * rails * leaf_ports <= most_nics ? 2 : 3);
    groups_per_pod = groups;
    pods = 1;
    int spine_ports_down = ports;
    if (levels == 3) {
      groups_per_pod = std::clamp(ports / 2 * (ports / 2) / leaf_ports, 1, groups);
      pods_per_rail = CeilDivide(groups, groups_per_pod);
      pods = rails * pods_per_rail;
      spine_ports_down = ports / 2;
      if (pods == 1) levels = 2;
    }
    const int leaves_per_pod = levels == 3 ? groups_per_pod : groups * rails;
    // At least one port from each leaf to each spine: what a pod lacks in spines, they have in
    // ports.
    spines_per_pod =
        std::clamp(CeilDivide(leaves_per_pod * leaf_uplinks, spine_ports_down), 1, leaf_uplinks);
    if (levels == 3) cores = CeilDivide(pods * spines_per_pod * Ports(SpineUplink(), port), ports);
  }

  // Switches of few ports make fabrics of absurdly many.
  void CheckSize() const {
    const int planes_of_cores = cores > 0 ? std::gcd(spines_per_pod, cores) : 1;
    const int cores_of_plane = cores / planes_of_cores;
    const double fabric =
        1.0 * groups * rails * spines_per_pod + 1.0 * pods * spines_per_pod * cores_of_plane;
    if (2 * fabric > kMaxFabricLinks) {
      throw ConfigError(fmt::format(
          "cluster {}: switch_ports: {} ports make a fabric of {:.0f} links, more than the {} "
          "modelled",
          config.name, config.switch_ports, 2 * fabric, kMaxFabricLinks));
    }
  }

  int NodesPerGroup() const {
    return config.fabric == Fabric::kSingleSwitch ? config.nodes : config.nodes_per_leaf;
  }
  // Bandwidth up of a leaf and of a spine.  Fabrics are laid out for full groups and full pods,
  // whether or not all nodes are there.
  double LeafUplink() const {
    return NodesPerGroup() * (1.0 * nics / rails) * config.nic_bandwidth.value /
           config.leaf_oversubscription;
  }
  double SpineUplink() const {
    return groups_per_pod * LeafUplink() / spines_per_pod / config.spine_oversubscription;
  }

  int Domain(int rank) const { return rank / per_domain; }
  int DomainBase(int domain) const { return domain * domain_vertices; }
  int Gpu(int rank) const { return DomainBase(Domain(rank)) + rank % per_domain; }
  int Plane(int domain) const { return DomainBase(domain) + per_domain; }
  int PcieSwitch(int domain, int i) const { return DomainBase(domain) + per_domain + planes + i; }
  int Socket(int domain, int i) const { return PcieSwitch(domain, pcie_switches) + i; }
  int Nic(int domain, int i) const { return Socket(domain, sockets) + i; }
  int Group(int domain) const { return domain / NodesPerGroup(); }
  int Leaf(int group, int rail) const { return first_leaf + group * rails + rail; }
  int Pod(int group, int rail) const {
    return levels == 3 ? rail * pods_per_rail + group / groups_per_pod : 0;
  }
  int Spine(int pod, int i) const { return first_spine + pod * spines_per_pod + i; }

  // A GPU's NICs are FirstNic() and the next NicsOf() - 1; a NIC's GPUs likewise.
  int NicsOf() const { return std::max(1, nics / per_domain); }
  int GpusOf() const { return nics == 0 ? 1 : std::max(1, per_domain / nics); }
  int FirstNic(int local) const { return nics >= per_domain ? local * NicsOf() : local / GpusOf(); }
  int FirstGpu(int nic) const { return nics >= per_domain ? nic / NicsOf() : nic * GpusOf(); }

  int SocketOf(int local) const { return local / (per_domain / sockets); }
  int PcieSwitchOf(int local) const { return local / config.gpus_per_pcie_switch; }

  VertexKind KindOf(int vertex) const {
    if (vertex >= first_core) return VertexKind::kCore;
    if (vertex >= first_spine) return VertexKind::kSpine;
    if (vertex >= first_leaf) return VertexKind::kLeaf;
    int i = vertex % domain_vertices;
    if (i < per_domain) return VertexKind::kGpu;
    i -= per_domain;
    if (i < planes) return VertexKind::kNvswitch;
    i -= planes;
    if (i < pcie_switches) return VertexKind::kPcieSwitch;
    i -= pcie_switches;
    return i < sockets ? VertexKind::kSocket : VertexKind::kNic;
  }

  std::string NameOf(int vertex) const {
    const auto in_domain = [&](const char* what, int first) {
      return fmt::format("node{}/{}{}", vertex / domain_vertices, what,
                         vertex % domain_vertices - first);
    };
    switch (KindOf(vertex)) {
      case VertexKind::kGpu:
        return in_domain("gpu", 0);
      case VertexKind::kNvswitch:
        return fmt::format("node{}/nvswitch", vertex / domain_vertices);
      case VertexKind::kPcieSwitch:
        return in_domain("pcie", PcieSwitch(0, 0));
      case VertexKind::kSocket:
        return in_domain("socket", Socket(0, 0));
      case VertexKind::kNic:
        return in_domain("nic", Nic(0, 0));
      case VertexKind::kLeaf:
        return fmt::format("leaf{}.{}", (vertex - first_leaf) / rails,
                           (vertex - first_leaf) % rails);
      case VertexKind::kSpine:
        return fmt::format("spine{}.{}", (vertex - first_spine) / spines_per_pod,
                           (vertex - first_spine) % spines_per_pod);
      case VertexKind::kCore:
        return fmt::format("core{}", vertex - first_core);
    }
    return {};
  }

  // The numbers in a name say where to look; NameOf says whether it is that one.
  std::optional<int> VertexNamed(std::string_view name) const {
    std::array<int, 2> number{};
    std::size_t found = 0;
    for (const char* at = name.data(); at != name.data() + name.size() && found < 2;) {
      const auto [end, error] = std::from_chars(at, name.data() + name.size(), number[found]);
      if (error == std::errc::result_out_of_range) return {};
      if (error == std::errc()) ++found;
      at = error == std::errc() ? end : at + 1;
    }
    const auto [a, b] = number;
    if (a < 0 || b < 0 || a > vertices || b > vertices) return {};
    const auto in = [&](int per_first, int first) {
      return std::int64_t{a} * per_first + first + b;
    };
    std::int64_t vertex = -1;
    if (name.starts_with("leaf")) vertex = in(rails, first_leaf);
    if (name.starts_with("spine")) vertex = in(spines_per_pod, first_spine);
    if (name.starts_with("core")) vertex = std::int64_t{first_core} + a;
    const std::string_view part = name.substr(std::min(name.find('/'), name.size()));
    if (part.starts_with("/gpu")) vertex = in(domain_vertices, 0);
    if (part.starts_with("/nvswitch")) vertex = in(domain_vertices, per_domain);
    if (part.starts_with("/pcie")) vertex = in(domain_vertices, PcieSwitch(0, 0));
    if (part.starts_with("/socket")) vertex = in(domain_vertices, Socket(0, 0));
    if (part.starts_with("/nic")) vertex = in(domain_vertices, Nic(0, 0));
    if (vertex < 0 || vertex >= vertices || NameOf(static_cast<int>(vertex)) != name) return {};
    return static_cast<int>(vertex);
  }

  std::string NameOfLink(int link) const {
    const Link& l = links[static_cast<std::size_t>(link)];
    return fmt::format("{}->{}", NameOf(l.from), NameOf(l.to));
  }

  // --- Links --------------------------------------------------------------------------------

  void Connect() {
    std::vector<Link> both;
    const auto join = [&](int u, int v, double bandwidth, double latency) {
      both.push_back({u, v, BytesPerSecond(bandwidth), Seconds(latency)});
      both.push_back({v, u, BytesPerSecond(bandwidth), Seconds(latency)});
    };
    for (int d = 0; d < config.nodes; ++d) ConnectDomain(d, join);
    if (levels >= 2) ConnectSpines(join);
    if (levels == 3) ConnectCores(join);

    // Counting sort by sender: a link's index is its edge's in the adjacency.
    std::vector<int> next(static_cast<std::size_t>(vertices) + 1, 0);
    for (const Link& link : both) ++next[static_cast<std::size_t>(link.from) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    links.resize(both.size());
    for (const Link& link : both) {
      links[static_cast<std::size_t>(next[static_cast<std::size_t>(link.from)]++)] = link;
    }
    std::vector<std::pair<int, int>> edges;
    edges.reserve(links.size());
    for (const Link& link : links) edges.emplace_back(link.from, link.to);
    adjacency = Adjacency(boost::edges_are_sorted, edges.begin(), edges.end(), vertices,
                          static_cast<std::int32_t>(edges.size()));
  }

  template <class Join>
  void ConnectDomain(int d, const Join& join) {
    const double nvlink = slowest.nvlink * config.nvlink_bandwidth.value;
    const double nvlink_latency = config.nvlink_latency.value;
    const double pcie = config.pcie_bandwidth.value;
    const double pcie_latency = config.pcie_latency.value;
    const int base = DomainBase(d);
    switch (config.domain_link) {
      case DomainLink::kNvswitch:
        for (int i = 0; i < per_domain && planes > 0; ++i) {
          join(base + i, Plane(d), nvlink, nvlink_latency / 2);
        }
        break;
      case DomainLink::kNvlinkBridge:
        for (int i = 0; i + 1 < per_domain; i += 2) {
          join(base + i, base + i + 1, nvlink, nvlink_latency);
        }
        break;
      case DomainLink::kXgmiMesh:
        for (int i = 0; i < per_domain; ++i) {
          for (int j = i + 1; j < per_domain; ++j) {
            join(base + i, base + j, nvlink / (per_domain - 1), nvlink_latency);
          }
        }
        break;
      case DomainLink::kPcie:
        break;
    }
    for (int i = 0; i < per_domain; ++i) {
      join(base + i, PcieSwitch(d, PcieSwitchOf(i)), pcie, pcie_latency);
    }
    for (int i = 0; i < pcie_switches; ++i) {
      const int socket = SocketOf(i * config.gpus_per_pcie_switch);
      join(PcieSwitch(d, i), Socket(d, socket), pcie, pcie_latency);
    }
    for (int i = 0; i + 1 < sockets && config.socket_bandwidth.value > 0; i += 2) {
      join(Socket(d, i), Socket(d, i + 1), config.socket_bandwidth.value, pcie_latency);
    }
    // A NIC hangs where its GPUs do: on their PCIe switch, or on the socket where they have
    // several.
    const bool on_switch = config.gpus_per_pcie_switch % GpusOf() == 0;
    for (int i = 0; i < nics; ++i) {
      const int local = FirstGpu(i);
      join(Nic(d, i), on_switch ? PcieSwitch(d, PcieSwitchOf(local)) : Socket(d, SocketOf(local)),
           pcie, pcie_latency);
      if (levels == 0) continue;
      join(Nic(d, i), Leaf(Group(d), i % rails), slowest.nic * config.nic_bandwidth.value,
           config.nic_latency.value + config.switch_latency.value / 2);
    }
  }

  template <class Join>
  void ConnectSpines(const Join& join) {
    for (int group = 0; group < groups; ++group) {
      for (int rail = 0; rail < rails; ++rail) {
        for (int i = 0; i < spines_per_pod; ++i) {
          join(Leaf(group, rail), Spine(Pod(group, rail), i), LeafUplink() / spines_per_pod,
               config.switch_latency.value);
        }
      }
    }
  }

  // Spine i of each pod joins the cores of plane i mod planes, as in a folded Clos.
  template <class Join>
  void ConnectCores(const Join& join) {
    const int core_planes = std::gcd(spines_per_pod, cores);
    const int cores_of_plane = cores / core_planes;
    const double bandwidth = SpineUplink() / cores_of_plane;
    for (int pod = 0; pod < pods; ++pod) {
      for (int i = 0; i < spines_per_pod; ++i) {
        for (int core = i % core_planes; core < cores; core += core_planes) {
          join(Spine(pod, i), first_core + core, bandwidth, config.switch_latency.value);
        }
      }
    }
  }

  std::span<const Link> Out(int vertex) const {
    const auto range = out_edges(vertex, adjacency);
    const auto count = static_cast<std::size_t>(std::distance(range.first, range.second));
    if (count == 0) return {};
    return std::span(links).subspan(static_cast<std::size_t>(EdgeIndex(*range.first)), count);
  }
  int EdgeIndex(const boost::graph_traits<Adjacency>::edge_descriptor& edge) const {
    return get(boost::edge_index, adjacency, edge);
  }

  std::optional<int> LinkBetween(int from, int to) const {
    for (const Link& link : Out(from)) {
      if (link.to == to) return static_cast<int>(&link - links.data());
    }
    return {};
  }

  // What leaves `vertex` towards vertices of one kind.
  double CapacityTo(int vertex, VertexKind kind) const {
    double sum = 0;
    for (const Link& link : Out(vertex)) {
      if (KindOf(link.to) == kind) sum += link.bandwidth.value;
    }
    return sum;
  }

  // --- Routes -------------------------------------------------------------------------------

  // Joined by NVLink or xGMI without PCIe?
  bool Linked(int local_a, int local_b) const {
    switch (config.domain_link) {
      case DomainLink::kNvswitch:
      case DomainLink::kXgmiMesh:
        return true;
      case DomainLink::kNvlinkBridge:
        return local_a / 2 == local_b / 2;
      case DomainLink::kPcie:
        return false;
    }
    return false;
  }

  // One end of a route: a rank, and which switches its NICs hang on.
  struct End {
    int rank, domain, gpu, group, first_nic, last_nic;
  };
  End EndOf(int rank) const {
    const int domain = Domain(rank);
    const int nic = Nic(domain, FirstNic(rank % per_domain));
    return {rank, domain, Gpu(rank), groups == 0 ? 0 : Group(domain), nic, nic + NicsOf() - 1};
  }

  // How far a route may go for a way: by what belongs to its two ends; by what other GPUs of
  // their domains forward to; by anything in the two domains and the fabric.
  enum class Reach { kOwn, kForwarded, kAny };

  // May a route between two ranks pass this vertex?  Which keeps the search small, and traffic
  // on the NICs that belong to the two.
  struct Allowed {
    const Graph* graph = nullptr;
    End a{}, b{};
    Reach reach = Reach::kOwn;

    bool operator()(int vertex) const {
      const Graph& g = *graph;
      if (vertex == a.gpu || vertex == b.gpu) return true;
      if (reach == Reach::kAny) {
        const int domain = vertex / g.domain_vertices;
        return vertex >= g.first_leaf || domain == a.domain || domain == b.domain;
      }
      if (a.domain == b.domain) return WithinDomain(vertex);
      const bool forward = reach == Reach::kForwarded;
      if (vertex >= g.first_core) return true;
      if (vertex >= g.first_spine) {
        const int pod = (vertex - g.first_spine) / g.spines_per_pod;
        return forward || PodOf(a, pod) || PodOf(b, pod);
      }
      if (vertex >= g.first_leaf) {
        const int group = (vertex - g.first_leaf) / g.rails;
        return group == a.group || group == b.group;
      }
      const int domain = vertex / g.domain_vertices;
      if (domain != a.domain && domain != b.domain) return false;
      const VertexKind kind = g.KindOf(vertex);
      // Where NVLink joins all, it is over NVLink that GPUs reach each other's NICs.
      if (forward) return kind != VertexKind::kSocket || !g.Linked(0, g.per_domain - 1);
      if (kind == VertexKind::kNic) return NicOf(a, vertex) || NicOf(b, vertex);
      return kind == VertexKind::kPcieSwitch || kind == VertexKind::kSocket;
    }

    bool WithinDomain(int vertex) const {
      if (vertex / graph->domain_vertices != a.domain) return false;
      const VertexKind kind = graph->KindOf(vertex);
      if (reach == Reach::kForwarded) return kind != VertexKind::kNic;
      if (graph->Linked(a.rank % graph->per_domain, b.rank % graph->per_domain)) {
        return kind == VertexKind::kNvswitch;
      }
      return kind == VertexKind::kPcieSwitch || kind == VertexKind::kSocket;
    }
    static bool NicOf(const End& end, int vertex) {
      return vertex >= end.first_nic && vertex <= end.last_nic;
    }
    bool PodOf(const End& end, int pod) const {
      const Graph& g = *graph;
      for (int nic = end.first_nic; nic <= end.last_nic; ++nic) {
        if (g.Pod(end.group, (nic - g.Nic(end.domain, 0)) % g.rails) == pod) return true;
      }
      return false;
    }
  };

  static bool Contains(std::span<const int> sorted, int link) {
    return std::binary_search(sorted.begin(), sorted.end(), link);
  }

  // Links that have not failed.
  struct Sound {
    const Graph* graph = nullptr;
    std::span<const int> failed;
    bool operator()(const boost::graph_traits<Adjacency>::edge_descriptor& edge) const {
      return failed.empty() || !Contains(failed, graph->EdgeIndex(edge));
    }
  };

  // Empty where there is none.
  std::vector<int> Route(int from, int to, Reach reach, std::span<const int> failed) const {
    const Allowed allowed{this, EndOf(from), EndOf(to), reach};
    // The search goes against the links.
    std::vector<int> failed_back;
    for (const int link : failed) {
      const Link& l = links[static_cast<std::size_t>(link)];
      failed_back.push_back(*LinkBetween(l.to, l.from));
    }
    std::sort(failed_back.begin(), failed_back.end());
    const boost::filtered_graph<Adjacency, Sound, Allowed> part(adjacency, {this, failed_back},
                                                                allowed);
    const int source = Gpu(from), target = Gpu(to);
    const auto delay = [&](const Link& link) {
      // Of the vertex that the link is heading for, seen from the target.
      const bool through_gpu = KindOf(link.to) == VertexKind::kGpu && link.to != source;
      return link.latency.value + kHopSeconds + (through_gpu ? kForwardSeconds : 0);
    };
    // From the target: links come in pairs of equal latency.
    std::unordered_map<int, double> reached{{target, 0}};
    const auto weight =
        boost::make_function_property_map<boost::graph_traits<Adjacency>::edge_descriptor, double>(
            [&](const auto& edge) {
              return delay(links[static_cast<std::size_t>(EdgeIndex(edge))]);
            });
    constexpr double kFar = std::numeric_limits<double>::max();
    boost::dijkstra_shortest_paths_no_color_map_no_init(
        part, target, boost::dummy_property_map(), Distances{&reached}, weight,
        get(boost::vertex_index, adjacency), std::less<double>(), boost::closed_plus<double>(kFar),
        kFar, 0.0, boost::dijkstra_visitor<>());
    const auto distance_of = [&](int v) { return get(Distances{&reached}, v); };
    if (distance_of(source) == kFar) return {};

    std::vector<int> route;
    int choice = Domain(to);
    // Down to another's NIC, which only detours come to: neighbours take turns of their own, or
    // two without a NIC would meet on a third's.
    int turn = Domain(to) + from % config.gpus_per_node;
    for (int at = source; at != target;) {
      std::vector<int> ways;
      for (const Link& link : Out(at)) {
        if (!allowed(link.to) || Contains(failed, static_cast<int>(&link - links.data()))) continue;
        const Link back{link.to, link.from, link.bandwidth, link.latency};
        if (std::abs(distance_of(link.to) + delay(back) - distance_of(at)) < kHopSeconds / 8) {
          ways.push_back(static_cast<int>(&link - links.data()));
        }
      }
      MILLWRIGHT_CHECK(!ways.empty());
      const int count = static_cast<int>(ways.size());
      const bool down = KindOf(links[static_cast<std::size_t>(ways.front())].to) < KindOf(at);
      int& pick = down && !failed.empty() ? turn : choice;
      route.push_back(ways[static_cast<std::size_t>(pick % count)]);
      pick /= count;
      at = links[static_cast<std::size_t>(route.back())].to;
    }
    return route;
  }

  std::vector<int> Route(int from, int to, std::span<const int> failed = {}) const {
    if (from == to) return {};
    std::vector<int> route = Route(from, to, Reach::kOwn, {});
    if (route.empty()) route = Route(from, to, Reach::kForwarded, {});
    MILLWRIGHT_CHECK(!route.empty());
    const auto broken =
        std::find_if(route.begin(), route.end(), [&](int link) { return Contains(failed, link); });
    if (broken == route.end()) return route;
    for (const Reach reach : {Reach::kOwn, Reach::kForwarded, Reach::kAny}) {
      std::vector<int> detour = Route(from, to, reach, failed);
      if (!detour.empty()) return detour;
    }
    throw ConfigError(fmt::format("{} cannot reach {}: {} is down and no other way is left",
                                  NameOf(Gpu(from)), NameOf(Gpu(to)), NameOfLink(*broken)));
  }

  Seconds RouteLatency(int from, int to) const {
    Seconds sum;
    for (int link : Route(from, to)) sum += links[static_cast<std::size_t>(link)].latency;
    return sum;
  }

  // --- Tiers --------------------------------------------------------------------------------

  int DomainTierOf(int local_a, int local_b) const {
    if (Linked(local_a, local_b)) return kLinked;
    if (PcieSwitchOf(local_a) == PcieSwitchOf(local_b)) return kSamePcieSwitch;
    return SocketOf(local_a) == SocketOf(local_b) ? kSameSocket : kAcrossSockets;
  }

  void MeasureDomain() {
    double share = CapacityTo(0, VertexKind::kNvswitch);
    for (const Link& link : Out(0)) {  // mesh and bridge: of one link
      if (KindOf(link.to) == VertexKind::kGpu) share = link.bandwidth.value;
    }
    domain_tiers[kLinked].bandwidth = BytesPerSecond(share);
    share = CapacityTo(0, VertexKind::kPcieSwitch);
    domain_tiers[kSamePcieSwitch].bandwidth = BytesPerSecond(share);
    share = std::min(
        share, CapacityTo(PcieSwitch(0, 0), VertexKind::kSocket) / config.gpus_per_pcie_switch);
    domain_tiers[kSameSocket].bandwidth = BytesPerSecond(share);
    share = std::min(share,
                     CapacityTo(Socket(0, 0), VertexKind::kSocket) / (1.0 * per_domain / sockets));
    domain_tiers[kAcrossSockets].bandwidth = BytesPerSecond(share);

    std::array<bool, kDomainTiers> measured{};
    for (int other = 1; other < per_domain; ++other) {
      const auto tier = static_cast<std::size_t>(DomainTierOf(0, other));
      if (!std::exchange(measured[tier], true)) {
        domain_tiers[tier].latency = RouteLatency(0, other);
      }
    }
  }

  int FabricTierOf(int rank_a, int rank_b) const {
    const int group_a = Group(Domain(rank_a)), group_b = Group(Domain(rank_b));
    const int rail_a = RailOf(rank_a), rail_b = RailOf(rank_b);
    if (group_a == group_b && rail_a == rail_b) return kSameLeaf;
    return Pod(group_a, rail_a) == Pod(group_b, rail_b) ? kSamePod : kAcrossPods;
  }
  int RailOf(int rank) const { return rail_of[static_cast<std::size_t>(rank % per_domain)]; }

  void MeasureFabric() {
    if (config.nodes == 1) return;
    double share = DomainExit() / per_domain;
    fabric_tiers[kSameLeaf].bandwidth = BytesPerSecond(share);
    if (levels >= 2) {
      const double behind = GpusBehind(NodesPerGroup());
      share = std::min(share, CapacityTo(Leaf(0, 0), VertexKind::kSpine) / behind);
    }
    fabric_tiers[kSamePod].bandwidth = BytesPerSecond(share);
    if (levels == 3) {
      double up = 0;
      for (int i = 0; i < spines_per_pod; ++i) up += CapacityTo(Spine(0, i), VertexKind::kCore);
      share = std::min(share, up / GpusBehind(NodesPerGroup() * groups_per_pod));
    }
    fabric_tiers[kAcrossPods].bandwidth = BytesPerSecond(share);

    const auto rail_change =
        std::find_if(rail_of.begin(), rail_of.end(), [&](int rail) { return rail != rail_of[0]; });
    const int off_rail =
        rail_change == rail_of.end() ? 0 : static_cast<int>(rail_change - rail_of.begin());
    std::array<bool, kFabricTiers> measured{};
    const std::int64_t group = NodesPerGroup();
    for (const std::int64_t domain : {std::int64_t{1}, group, group * groups_per_pod}) {
      if (domain >= config.nodes) continue;
      for (const int local : {0, off_rail}) {
        const int other = static_cast<int>(domain) * per_domain + local;
        const auto tier = static_cast<std::size_t>(FabricTierOf(0, other));
        if (!std::exchange(measured[tier], true)) {
          fabric_tiers[tier].latency = RouteLatency(0, other);
        }
      }
    }
  }

  // GPUs (or parts, where NICs of several rails serve one) that send through the fullest leaf
  // or pod of so many nodes.
  double GpusBehind(int nodes) const {
    return 1.0 * std::min(nodes, config.nodes) * per_domain / rails;
  }

  // Largest flow from the GPUs of a domain to its leaves, over PCIe and NICs.
  double DomainExit() const {
    std::vector<Pipe> pipes;  // vertex v is v + 2, all leaves are the sink 1
    for (int v = 0; v < domain_vertices; ++v) {
      const VertexKind kind = KindOf(v);
      if (kind == VertexKind::kGpu)
        pipes.push_back({0, v + 2, CapacityTo(v, VertexKind::kPcieSwitch)});
      for (const Link& link : Out(v)) {
        const VertexKind to = KindOf(link.to);
        if (to == VertexKind::kGpu || to == VertexKind::kNvswitch) continue;
        pipes.push_back({v + 2, to == VertexKind::kLeaf ? 1 : link.to + 2, link.bandwidth.value});
      }
    }
    return MaxFlow(domain_vertices + 2, pipes);
  }

  double Bisection() const {
    if (gpus == 1) return 0;
    std::vector<Pipe> pipes;
    if (config.nodes == 1) {
      // Over what routes pass: NVLink where it joins all, else everything but the NICs.
      const bool linked = Linked(0, per_domain - 1);
      const auto open = [&](int vertex) {
        const VertexKind kind = KindOf(vertex);
        if (kind == VertexKind::kGpu || kind == VertexKind::kNvswitch) return true;
        return !linked && (kind == VertexKind::kPcieSwitch || kind == VertexKind::kSocket);
      };
      for (const Link& link : links) {
        if (!open(link.from) || !open(link.to)) continue;
        pipes.push_back({link.from + 2, link.to + 2, link.bandwidth.value});
      }
      for (int i = 0; i < per_domain; ++i) {
        double out = 0;
        for (const Link& link : Out(i)) out += link.bandwidth.value;
        pipes.push_back(i < per_domain / 2 ? Pipe{0, i + 2, out} : Pipe{i + 2, 1, out});
      }
      return MaxFlow(vertices + 2, pipes);
    }
    // Every GPU of a domain is on one side, so what happens inside it comes down to how much
    // gets out: a domain is one vertex.
    const double exit = DomainExit();
    const int first = 2 + config.nodes;
    for (int d = 0; d < config.nodes; ++d) {
      const bool sends = d < config.nodes / 2;
      pipes.push_back(sends ? Pipe{0, d + 2, exit} : Pipe{d + 2, 1, exit});
      for (int i = 0; i < nics; ++i) {
        const int leaf = Leaf(Group(d), i % rails) - first_leaf + first;
        const double nic = CapacityTo(Nic(d, i), VertexKind::kLeaf);
        pipes.push_back(sends ? Pipe{d + 2, leaf, nic} : Pipe{leaf, d + 2, nic});
      }
    }
    for (int v = first_leaf; v < vertices; ++v) {
      for (const Link& link : Out(v)) {
        if (link.to < first_leaf) continue;
        pipes.push_back(
            {v - first_leaf + first, link.to - first_leaf + first, link.bandwidth.value});
      }
    }
    return MaxFlow(first + vertices - first_leaf, pipes);
  }

  // --- Profiles -----------------------------------------------------------------------------

  PathProfile ProfileOf(const Spread& s) const {
    PathProfile p;
    p.ranks = s.ranks;
    p.domains = s.domains;
    p.min_ranks_per_domain = s.min_ranks;
    p.max_ranks_per_domain = s.max_ranks;
    if (per_domain > 1) {
      // Where no two members share a domain: what the nearest two GPUs would get.
      int tier = s.max_ranks > 1 ? s.domain_tier : DomainTierOf(0, 1);
      p.domain_bandwidth = domain_tiers[static_cast<std::size_t>(tier)].bandwidth;
      p.domain_latency = domain_tiers[static_cast<std::size_t>(tier)].latency;
      if (config.domain_link == DomainLink::kXgmiMesh && s.max_ranks > 1) {
        p.domain_bandwidth = p.domain_bandwidth * double(s.fewest_pairs - 1);
      }
    }
    if (s.domains > 1) {
      p.fabric_bandwidth = fabric_tiers[static_cast<std::size_t>(s.fabric_tier)].bandwidth;
      p.fabric_latency = fabric_tiers[static_cast<std::size_t>(s.fabric_tier)].latency;
    }
    p.in_switch_reduction = config.in_switch_reduction && s.min_ranks > 1;
    return p;
  }

  using RailSet = std::bitset<kMaxRails>;

  // Rails of `count` GPUs of a domain, `stride` apart.
  RailSet RailsOf(int first, int stride, int count) const {
    RailSet set;
    for (int i = 0; i < count; ++i) {
      set.set(static_cast<std::size_t>(
          rail_of[std::size_t(first) + std::size_t(i) * std::size_t(stride)]));
    }
    return set;
  }

  int OffRailTier() const { return levels == 3 ? kAcrossPods : kSamePod; }

  PathProfile Profile(std::vector<int> ranks) const {
    if (ranks.empty()) throw ConfigError("a process group needs at least one rank");
    std::sort(ranks.begin(), ranks.end());
    if (ranks.front() < 0 || ranks.back() >= gpus) {
      throw ConfigError(fmt::format("rank {} is not one of the cluster's 0 to {}",
                                    ranks.front() < 0 ? ranks.front() : ranks.back(), gpus - 1));
    }
    if (const auto twice = std::adjacent_find(ranks.begin(), ranks.end()); twice != ranks.end()) {
      throw ConfigError(fmt::format("rank {} is twice in a process group", *twice));
    }
    Spread s;
    s.ranks = static_cast<int>(ranks.size());
    s.domains = 0;
    RailSet first_rails;
    for (std::size_t i = 0; i < ranks.size(); ++s.domains) {
      std::size_t end = i;
      RailSet rails_here;
      for (; end < ranks.size() && Domain(ranks[end]) == Domain(ranks[i]); ++end) {
        rails_here.set(static_cast<std::size_t>(RailOf(ranks[end])));
      }
      s.AddDomain(static_cast<int>(end - i));
      if (end - i > 1) {
        s.domain_tier = std::max(s.domain_tier,
                                 DomainTierOf(ranks[i] % per_domain, ranks[end - 1] % per_domain));
      }
      if (s.domains == 0) first_rails = rails_here;
      if (rails_here != first_rails) s.fabric_tier = std::max(s.fabric_tier, OffRailTier());
      i = end;
    }
    if (s.domains > 1) {
      // Groups and pods hold consecutive domains: the first and the last are furthest apart.
      const int last = Domain(ranks.back()) * per_domain + ranks.front() % per_domain;
      s.fabric_tier = std::max(s.fabric_tier, FabricTierOf(ranks.front(), last));
    }
    return ProfileOf(s);
  }

  PathProfile Profile(StridedGroup shape) const {
    const std::int64_t block = std::int64_t{shape.stride} * shape.ranks;
    if (shape.stride < 1 || shape.ranks < 1 || block > gpus) {
      throw ConfigError(fmt::format("{} ranks at stride {} do not fit on {} GPUs", shape.ranks,
                                    shape.stride, gpus));
    }
    Spread s;
    s.ranks = shape.ranks;
    const int used = static_cast<int>(gpus / block * block);
    if (shape.ranks == 1) {
      s.AddDomain(1);
    } else if (shape.stride % per_domain == 0) {
      s.AddDomain(1);
      s.domains = shape.ranks;
    } else if (shape.stride > per_domain) {
      SpreadLongStride(shape, s);
    } else {
      SpreadShortStride(shape, used, s);
    }
    if (s.domains > 1) {
      const int b = static_cast<int>(block);
      if (Straddles(std::int64_t{per_domain} * NodesPerGroup(), b, used)) {
        s.fabric_tier = std::max<int>(s.fabric_tier, kSamePod);
      }
      if (levels == 3 &&
          Straddles(std::int64_t{per_domain} * NodesPerGroup() * groups_per_pod, b, used)) {
        s.fabric_tier = kAcrossPods;
      }
    }
    return ProfileOf(s);
  }

  // Does a group of some block of `block` consecutive ranks lie on both sides of a multiple of
  // `size`?  Inside a block that straddles such a boundary one always does: of the `stride`
  // interleaved groups, the one that holds the rank before the boundary goes on or, if it ends
  // there, another holds ranks on both sides.  If the first boundary falls between two blocks,
  // all do.
  static bool Straddles(std::int64_t size, int block, int used) {
    return size < used && size % block != 0;
  }

  // One member a domain, on a rail that may change.
  void SpreadLongStride(StridedGroup shape, Spread& s) const {
    s.AddDomain(1);
    s.domains = shape.ranks;
    const int period = per_domain / std::gcd(per_domain, shape.stride);
    const int step = shape.stride % per_domain;
    for (int start = 0; start < per_domain && s.fabric_tier < OffRailTier(); ++start) {
      int local = start;
      for (int i = 1; i < std::min(shape.ranks, period); ++i) {
        local = (local + step) % per_domain;
        if (rail_of[static_cast<std::size_t>(local)] != rail_of[static_cast<std::size_t>(start)]) {
          s.fabric_tier = OffRailTier();
        }
      }
    }
  }

  // Several members a domain.  Where in its first domain a group starts decides how it lies on
  // domains, and those starts repeat: after so many blocks, or, where whole blocks fit into a
  // domain or whole domains into a block, at once.
  void SpreadShortStride(StridedGroup shape, int used, Spread& s) const {
    const int block = shape.stride * shape.ranks;
    const int starts = std::min(used / block, per_domain / std::gcd(per_domain, block));
    for (int outer = 0; outer < starts; ++outer) {
      for (int inner = 0; inner < shape.stride; ++inner) {
        SpreadFrom(static_cast<int>((std::int64_t{outer} * block + inner) % per_domain), shape, s);
      }
    }
  }

  void SpreadFrom(int start, StridedGroup shape, Spread& s) const {
    const bool nested = per_domain % shape.stride == 0;
    int first_count = 0, domains = 0;
    RailSet first_rails;
    bool first_rails_known = false;
    int local = start, left = shape.ranks;
    while (left > 0) {
      const int count = std::min(left, (per_domain - 1 - local) / shape.stride + 1);
      s.AddDomain(count);
      if (count > 1) {
        s.domain_tier =
            std::max(s.domain_tier, DomainTierOf(local, local + (count - 1) * shape.stride));
      }
      if (domains == 0) {
        first_count = count;
      } else if (s.fabric_tier < OffRailTier() && (local != start || count != first_count)) {
        if (!std::exchange(first_rails_known, true)) {
          first_rails = RailsOf(start, shape.stride, first_count);
        }
        if (RailsOf(local, shape.stride, count) != first_rails) s.fabric_tier = OffRailTier();
      }
      ++domains;
      left -= count;
      local += count * shape.stride - per_domain;
      // From its second domain on, a group whose stride divides the domain repeats itself.
      const int full = per_domain / shape.stride;
      if (nested && domains > 1 && left > full) {
        const int skipped = (left - 1) / full;
        domains += skipped;
        left -= skipped * full;
      }
    }
    s.domains = std::max(s.domains, domains);
  }
};

Cluster::Cluster(ClusterConfig config) : graph_(std::make_unique<Graph>(std::move(config))) {}
Cluster::~Cluster() = default;
Cluster::Cluster(Cluster&&) noexcept = default;
Cluster& Cluster::operator=(Cluster&&) noexcept = default;

const ClusterConfig& Cluster::config() const { return graph_->config; }
const GpuSpec& Cluster::gpu() const { return graph_->config.gpu; }
int Cluster::gpus() const { return graph_->gpus; }
int Cluster::gpus_per_domain() const { return graph_->per_domain; }
int Cluster::domains() const { return graph_->config.nodes; }

PathProfile Cluster::Profile(StridedGroup group) const { return graph_->Profile(group); }
PathProfile Cluster::Profile(std::span<const int> ranks) const {
  return graph_->Profile(std::vector<int>(ranks.begin(), ranks.end()));
}

std::vector<int> Cluster::Route(int from_rank, int to_rank, std::span<const int> failed) const {
  MILLWRIGHT_CHECK(from_rank >= 0 && from_rank < gpus() && to_rank >= 0 && to_rank < gpus());
  MILLWRIGHT_CHECK(std::is_sorted(failed.begin(), failed.end()));
  return graph_->Route(from_rank, to_rank, failed);
}

BytesPerSecond Cluster::Bisection() const { return BytesPerSecond(graph_->Bisection()); }

int Cluster::switch_levels() const { return graph_->levels; }
int Cluster::vertices() const { return graph_->vertices; }
int Cluster::CountOf(VertexKind kind) const {
  int count = 0;
  for (int v = 0; v < graph_->vertices; ++v) count += graph_->KindOf(v) == kind ? 1 : 0;
  return count;
}
VertexKind Cluster::KindOf(int vertex) const { return graph_->KindOf(vertex); }
std::string Cluster::NameOf(int vertex) const { return graph_->NameOf(vertex); }
std::optional<int> Cluster::VertexNamed(std::string_view name) const {
  return graph_->VertexNamed(name);
}
std::string Cluster::NameOfLink(int link) const { return graph_->NameOfLink(link); }
int Cluster::GpuVertex(int rank) const { return graph_->Gpu(rank); }
std::span<const Link> Cluster::links() const { return graph_->links; }
std::span<const Link> Cluster::LinksFrom(int vertex) const { return graph_->Out(vertex); }
std::optional<int> Cluster::LinkBetween(int from_vertex, int to_vertex) const {
  return graph_->LinkBetween(from_vertex, to_vertex);
}

}  // namespace millwright
