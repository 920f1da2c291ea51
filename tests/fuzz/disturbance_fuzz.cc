// SPDX-License-Identifier: Apache-2.0
//
// `--slow` and `--link-down`: any texts, one a line (those after a blank line are links that are
// down), are taken or refused with a message; what is taken makes a network that answers or says
// who is cut off.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/config_io.h"
#include "sim/disturbance.h"
#include "sim/network.h"

namespace {

millwright::Cluster Small() {
  millwright::ClusterConfig config = millwright::FindCluster("dgx-h100");
  config.nodes = 3;
  config.nodes_per_leaf = 2;
  return millwright::Cluster(config);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millwright;
  static const Cluster cluster = Small();
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> slow, down;
  bool behind_blank = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end == 0 && !behind_blank) {
      behind_blank = true;
    } else {
      (behind_blank ? down : slow).emplace_back(text.substr(0, end));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  try {
    const Disturbance disturbance = ReadDisturbance(slow, down, cluster);
    for (const double speed : disturbance.gpu_speed) MILLWRIGHT_CHECK(speed > 0 && speed <= 1);
    const CollectiveCalibration& calibration = CalibrationFor(cluster.gpu()).collective;
    FairShareNetwork network(cluster, calibration);
    for (const auto& [link, factor] : disturbance.slow_links) network.Slow(link, factor);
    for (const int link : disturbance.failed_links) network.Fail(link);
    std::vector<int> all(24);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = int(i);
    const CollectiveCall call{.group = network.AddGroup(all), .payload = Bytes(1e9)};
    const double alone = network.Alone(call).value;
    MILLWRIGHT_CHECK(std::isfinite(alone) && alone > 0);
    network.Start(Seconds(0), call, 0);
    std::vector<Completion> done;
    network.Advance(Seconds(1e300), &done);
    MILLWRIGHT_CHECK(done.size() == 1 && done[0].time.value >= alone * (1 - 1e-9));
  } catch (const ConfigError&) {
  }
  return 0;
}
