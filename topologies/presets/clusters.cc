// SPDX-License-Identifier: Apache-2.0
//
// Shipped clusters.
//
// Latencies.  What a datasheet leaves out is taken from the per-step hardware latencies in
// NCCL's tuning table (src/graph/tuning.cc, LL protocol, ring): NVLink 0.6 us, PCIe 1.0 us, NET
// 2.7 us.  0.6 us is GPU to GPU; 1.0 us is two PCIe links (GPU, switch, GPU), so 0.5 us a link;
// 2.7 us is four PCIe links, one switch and two NICs, so (2.7 - 2.0 - 0.2) / 2 = 0.25 us a NIC.
#include "topologies/cluster_config.h"

namespace millwright {
namespace {

constexpr BytesPerSecond kPcieGen4{31.5e9};  // x16: 16 GT/s x 16 lanes x 128/130 / 8
constexpr BytesPerSecond kPcieGen5{63.0e9};  // x16: 32 GT/s x 16 lanes x 128/130 / 8
constexpr BytesPerSecond kPcieGen6{121e9};   // x16: 64 GT/s x 16 lanes x 242/256 / 8 (FLIT mode)

ClusterConfig DgxA100() {
  using namespace literals;
  ClusterConfig c;
  c.name = "dgx-a100";
  c.gpu = FindGpu("A100-80GB");
  c.gpus_per_node = 8;
  c.domain_link = DomainLink::kNvswitch;
  c.nvlink_bandwidth = 300_GBps;       // NVIDIA A100 datasheet: 600 GB/s both directions
  c.nvlink_latency = Seconds(0.6e-6);  // NCCL tuning table, see above
  c.nvswitches = 6;                    // NVIDIA DGX A100 datasheet
  c.in_switch_reduction = false;       // NVLink SHARP came with the third-generation NVSwitch
  c.sockets = 2;                       // NVIDIA DGX A100 datasheet: 2 x AMD Rome 7742
  c.gpus_per_pcie_switch = 2;          // NVIDIA DGX A100 user guide, system topology
  c.pcie_bandwidth = kPcieGen4;        // NVIDIA DGX A100 datasheet
  c.pcie_latency = Seconds(0.5e-6);    // NCCL tuning table, see above
  c.socket_bandwidth = 96_GBps;        // AMD Rome xGMI: 3 links of 16 GT/s x 16 lanes
  c.host_memory = Bytes(2e12);         // NVIDIA DGX A100 datasheet, 640 GB system
  c.nics_per_node = 8;                 // NVIDIA DGX A100 datasheet, compute fabric
  c.nic_bandwidth = 200_Gbps;          // ConnectX-6 HDR
  c.nic_latency = Seconds(0.25e-6);    // NCCL tuning table, see above
  c.fabric = Fabric::kRailOptimized;   // DGX SuperPOD A100 reference architecture
  c.nodes_per_leaf = 20;               // DGX SuperPOD A100: 20 systems a scalable unit
  c.switch_ports = 40;                 // QM8790 datasheet: 40 HDR ports
  c.switch_latency = Seconds(0.2e-6);  // Quantum: about 0.15 us port to port, and 10 m of fibre
  c.source = "NVIDIA DGX A100 datasheet; DGX SuperPOD A100 reference architecture";
  return c;
}

ClusterConfig DgxA100With40() {
  ClusterConfig c = DgxA100();
  c.name = "dgx-a100-40gb";
  c.gpu = FindGpu("A100-40GB");
  c.host_memory = Bytes(1e12);  // NVIDIA DGX A100 datasheet, 320 GB system
  return c;
}

ClusterConfig DgxH100() {
  using namespace literals;
  ClusterConfig c = DgxA100();
  c.name = "dgx-h100";
  c.gpu = FindGpu("H100-SXM");
  c.nvlink_bandwidth = 450_GBps;  // NVIDIA H100 datasheet: 900 GB/s both directions
  c.nvswitches = 4;               // NVIDIA DGX H100 datasheet
  c.in_switch_reduction = true;   // NVIDIA technical blog on the third-generation NVSwitch
  c.gpus_per_pcie_switch = 1;     // nvidia-smi topo of 8-GPU boards: each GPU has its own NIC
  c.pcie_bandwidth = kPcieGen5;   // NVIDIA DGX H100 datasheet
  c.host_memory = Bytes(2e12);    // NVIDIA DGX H100 datasheet; H200 and B200 the same
  c.nics_per_node = 8;            // NVIDIA DGX H100 datasheet: 8 ConnectX-7 for compute
  c.nic_bandwidth = 400_Gbps;     // ConnectX-7 NDR
  c.nodes_per_leaf = 32;          // DGX SuperPOD H100: 32 systems a scalable unit
  c.switch_ports = 64;            // QM9700 datasheet: 64 NDR ports
  c.source = "NVIDIA DGX H100 datasheet; DGX SuperPOD H100 reference architecture";
  return c;
}

ClusterConfig DgxH200() {
  ClusterConfig c = DgxH100();
  c.name = "dgx-h200";
  c.gpu = FindGpu("H200");
  c.source = "NVIDIA DGX H200 datasheet; DGX SuperPOD H200 reference architecture";
  return c;
}

ClusterConfig DgxH800() {
  using namespace literals;
  ClusterConfig c = DgxH100();
  c.name = "dgx-h800";
  c.gpu = FindGpu("H800");
  c.nvlink_bandwidth = 200_GBps;  // H800: NVLink 400 GB/s both directions
  c.source = "H100 systems with H800: NVLink 400 GB/s; arXiv:2412.19437, section 3.1 (8 x NDR)";
  return c;
}

ClusterConfig DgxB200() {
  using namespace literals;
  ClusterConfig c = DgxH100();
  c.name = "dgx-b200";
  c.gpu = FindGpu("B200");
  c.nvlink_bandwidth = 900_GBps;  // NVIDIA HGX B200 datasheet: 1.8 TB/s both directions
  c.nvswitches = 2;               // NVIDIA DGX B200 datasheet
  c.source = "NVIDIA DGX B200 datasheet; DGX SuperPOD B200 reference architecture";
  return c;
}

ClusterConfig DgxB300() {
  using namespace literals;
  ClusterConfig c = DgxB200();
  c.name = "dgx-b300";
  c.gpu = FindGpu("B300");
  c.pcie_bandwidth = kPcieGen6;  // NVIDIA DGX B300 datasheet: GPUs and ConnectX-8 are PCIe 6
  c.nic_bandwidth = 800_Gbps;    // NVIDIA DGX B300 datasheet: 8 x ConnectX-8, 800 Gb/s
  c.nodes_per_leaf = 72;         // DGX SuperPOD B300 (XDR) reference architecture, table 3
  c.switch_ports = 144;          // Quantum-X800 Q3400 datasheet
  c.source = "NVIDIA DGX B300 datasheet; DGX SuperPOD B300 (XDR) reference architecture";
  return c;
}

ClusterConfig Gb200Nvl72() {
  using namespace literals;
  ClusterConfig c = DgxB200();
  c.name = "gb200-nvl72";
  c.gpu = FindGpu("GB200");
  c.gpus_per_node = 72;     // NVIDIA GB200 NVL72 datasheet
  c.nvswitches = 18;        // DGX SuperPOD GB200 reference architecture: 9 trays of 2 chips
  c.sockets = 36;           // NVIDIA GB200 NVL72 datasheet: 36 Grace
  c.socket_bandwidth = {};  // GPUs meet over NVLink; the Graces' own links are left out
  // NVLink-C2C would carry 450 GB/s each way, but two GPUs share a Grace's LPDDR5X: 18.4 TB/s for
  // 72 GPUs (NVIDIA GB200 NVL72 datasheet).
  c.host_bandwidth = BytesPerSecond(255e9);
  c.host_memory = Bytes(17e12);  // NVIDIA GB200 NVL72 datasheet
  c.nics_per_node = 72;          // NVIDIA GB200 NVL72 datasheet: one 400 Gb/s ConnectX-7 a GPU
  c.nic_bandwidth = 400_Gbps;
  c.rails = 4;           // DGX SuperPOD GB200: the 4 NICs of each of 18 compute trays
  c.nodes_per_leaf = 8;  // DGX SuperPOD GB200: 8 racks a scalable unit
  c.source = "NVIDIA GB200 NVL72 datasheet; DGX SuperPOD GB200 reference architecture";
  return c;
}

ClusterConfig Gb300Nvl72() {
  using namespace literals;
  ClusterConfig c = Gb200Nvl72();
  c.name = "gb300-nvl72";
  c.gpu = FindGpu("GB300");
  c.pcie_bandwidth = kPcieGen6;              // NVIDIA GB300 NVL72 datasheet: ConnectX-8 on PCIe 6
  c.host_bandwidth = BytesPerSecond(194e9);  // NVIDIA GB300 NVL72 datasheet: 14 TB/s LPDDR5X
  c.nic_bandwidth = 800_Gbps;  // NVIDIA GB300 NVL72 datasheet: one 800 Gb/s ConnectX-8 a GPU
  c.switch_ports = 144;        // Quantum-X800 Q3400 datasheet
  c.source = "NVIDIA GB300 NVL72 datasheet";
  return c;
}

ClusterConfig DgxH100Oversubscribed() {
  ClusterConfig c = DgxH100();
  c.name = "dgx-h100-3to1";
  c.fabric = Fabric::kFatTree;
  c.nodes_per_leaf = 6;         // 48 of 64 ports go down, 16 up
  c.leaf_oversubscription = 3;  // 48 / 16
  c.source = "DGX H100 nodes under leaves of 64 ports, 48 down and 16 up: a made-up economy fabric";
  return c;
}

ClusterConfig PcieL40s() {
  using namespace literals;
  ClusterConfig c = DgxA100();
  c.name = "pcie-l40s";
  c.host_memory = {};  // servers differ
  c.gpu = FindGpu("L40S");
  c.domain_link = DomainLink::kPcie;
  c.nvlink_bandwidth = {};  // NVIDIA L40S datasheet: no NVLink
  c.nvlink_latency = {};
  c.nvswitches = 0;
  c.gpus_per_pcie_switch = 2;    // usual 8-GPU server: 4 switches
  c.pcie_bandwidth = kPcieGen4;  // NVIDIA L40S datasheet: PCIe 4.0 x16
  c.socket_bandwidth = 96_GBps;  // Intel Xeon UPI 2.0: 3 links of 16 GT/s x 16 data lanes
  c.nics_per_node = 4;           // one for two GPUs, as NVIDIA's L40S reference design has it
  c.nic_bandwidth = 200_Gbps;    // ConnectX-7, 2 x 200 Gb/s a card, one port used
  c.fabric = Fabric::kFatTree;
  c.switch_ports = 64;
  c.nodes_per_leaf = 8;  // 32 of 64 ports down
  c.source = "8-GPU PCIe server with L40S (NVIDIA L40S datasheet), 4 x 200 Gb/s";
  return c;
}

ClusterConfig PcieH100() {
  using namespace literals;
  ClusterConfig c = PcieL40s();
  c.name = "pcie-h100";
  c.gpu = FindGpu("H100-PCIe");
  c.pcie_bandwidth = kPcieGen5;  // NVIDIA H100 PCIe datasheet
  c.nic_bandwidth = 400_Gbps;    // ConnectX-7 NDR
  c.source = "8-GPU PCIe server with H100 PCIe, no bridges (NVIDIA H100 PCIe datasheet)";
  return c;
}

ClusterConfig H100NvlPairs() {
  using namespace literals;
  ClusterConfig c = PcieH100();
  c.name = "h100-nvl";
  c.gpu = FindGpu("H100-NVL");
  c.domain_link = DomainLink::kNvlinkBridge;
  c.nvlink_bandwidth = 300_GBps;       // NVIDIA H100 NVL datasheet: 600 GB/s both directions
  c.nvlink_latency = Seconds(0.6e-6);  // NCCL tuning table, see above
  c.source = "8-GPU PCIe server with H100 NVL in bridged pairs (NVIDIA H100 NVL datasheet)";
  return c;
}

ClusterConfig A100PciePairs() {
  using namespace literals;
  ClusterConfig c = H100NvlPairs();
  c.name = "a100-pcie-bridge";
  c.gpu = FindGpu("A100-PCIe-80GB");
  c.pcie_bandwidth = kPcieGen4;  // NVIDIA A100 datasheet
  c.nic_bandwidth = 200_Gbps;    // ConnectX-6 HDR
  c.source = "8-GPU PCIe server with A100 PCIe in bridged pairs (NVIDIA A100 datasheet)";
  return c;
}

ClusterConfig Mi300x() {
  using namespace literals;
  ClusterConfig c = DgxH100();
  c.name = "mi300x";
  c.host_memory = {};  // servers differ
  c.gpu = FindGpu("MI300X");
  c.domain_link = DomainLink::kXgmiMesh;
  c.nvlink_bandwidth = 448_GBps;       // AMD MI300X platform datasheet: 7 links of 64 GB/s
  c.nvlink_latency = Seconds(0.6e-6);  // assumed: as NVLink
  c.nvswitches = 0;
  c.in_switch_reduction = false;
  c.source = "AMD Instinct MI300X platform datasheet; 8 x 400 Gb/s";
  return c;
}

// The machine that `run` executes on.  Its numbers are placeholders of the right order for a core
// of a server and ranks that share memory, until they are measured on yours.
ClusterConfig LocalCpu() {
  using namespace literals;
  ClusterConfig c;
  c.name = "local-cpu";
  c.gpu = FindGpu("local-cpu");
  c.gpus_per_node = 64;
  c.domain_link = DomainLink::kNvswitch;  // main memory stands for the switch
  c.nvlink_bandwidth = 5_GBps;            // placeholder: a copy through shared memory
  c.nvlink_latency = Seconds(1e-6);  // placeholder: Open MPI's shared memory, half a round trip
  c.nvswitches = 1;
  c.sockets = 1;
  c.gpus_per_pcie_switch = 64;
  c.pcie_bandwidth = 5_GBps;         // placeholder: as above
  c.pcie_latency = Seconds(0.5e-6);  // placeholder: as above
  c.nics_per_node = 0;
  c.fabric = Fabric::kNone;
  c.source = "one machine whose cores are the GPUs; placeholders, to be calibrated";
  return c;
}

}  // namespace

std::span<const ClusterPreset> ClusterPresets() {
  static const std::vector<ClusterPreset> presets = {
      {DgxA100(), {"a100", "a100-80gb", "a100-sxm", "hgx-a100", "a100-sxm4-80gb"}},
      {DgxA100With40(), {"a100-40gb", "a100-sxm4-40gb"}},
      {DgxH100(), {"h100", "h100-80gb", "h100-sxm", "h100-sxm5", "hgx-h100", "h100-sxm5-80gb"}},
      {DgxH200(), {"h200", "h200-141gb", "h200-sxm", "hgx-h200"}},
      {DgxH800(), {"h800", "h800-80gb", "h800-sxm", "hgx-h800"}},
      {DgxB200(), {"b200", "b200-sxm", "hgx-b200"}},
      {DgxB300(), {"b300", "b300-sxm", "hgx-b300"}},
      {Gb200Nvl72(), {"gb200", "nvl72", "dgx-gb200"}},
      {Gb300Nvl72(), {"gb300", "dgx-gb300"}},
      {DgxH100Oversubscribed(), {"h100-3to1", "h100-oversubscribed"}},
      {PcieL40s(), {"l40s"}},
      {PcieH100(), {"h100-pcie"}},
      {H100NvlPairs(), {"h100-nvlink-bridge", "h100-nvl-pairs"}},
      {A100PciePairs(), {"a100-pcie", "a100-nvlink-bridge"}},
      {Mi300x(), {"mi300", "hgx-mi300x"}},
      {LocalCpu(), {"cpu"}},
  };
  return presets;
}

}  // namespace millwright
