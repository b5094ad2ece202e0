#include "tessera/cost/tensor_traffic.h"

#include <gtest/gtest.h>

#include "tessera/cost/layer_rows.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

StageLinks place_over(int nodes) {
  StageLinks place;
  place.tensor_bytes_per_s = 1e6;
  place.tensor_nodes = {{.count = nodes, .among = {}}};
  return place;
}

TensorTraffic three_panels(const Cluster& cluster) {
  LayerRows rows;
  rows.layers.resize(1);
  rows.layers[0].exchanged.forward = {
      {.operation = "broadcast", .ranks = 2, .bytes = 1000, .panels = 3}};
  rows.layers[0].exchanged.backward = {
      {.operation = "broadcast", .ranks = 2, .bytes = 1000, .times = 2, .panels = 3}};
  return {cluster, 2, rows};
}

// Ranks that share memory wait once for what a product needs, others for one panel after the other.
TEST(TensorTraffic, PanelsAreThereAtOneTimeOnOneNode) {
  Cluster cluster = small_cluster(2, 1);
  cluster.collectives = {
      {"broadcast", 2, 1, 1000, 1.5e-3},
      {"broadcast", 2, 1, 3000, 2e-3},
      {"broadcast", 2, 2, 1000, 5e-3},
      {"broadcast", 2, 2, 3000, 8e-3}};
  const TensorTraffic traffic = three_panels(cluster);
  const PassSeconds near = traffic.seconds(0, 1, place_over(1));
  EXPECT_NEAR(near.forward, 2e-3, 1e-12);
  EXPECT_NEAR(near.backward, 4e-3, 1e-12);
  const PassSeconds far = traffic.seconds(0, 1, place_over(2));
  EXPECT_NEAR(far.forward, 15e-3, 1e-12);
  EXPECT_NEAR(far.backward, 30e-3, 1e-12);
}

TEST(TensorTraffic, PanelsThatNobodyMeasuredTakeTheirBytes) {
  const TensorTraffic traffic = three_panels(small_cluster(2, 1));
  for (const int nodes : {1, 2}) {
    EXPECT_NEAR(traffic.seconds(0, 1, place_over(nodes)).forward, 3e-3, 1e-12) << nodes;
  }
}

} // namespace
} // namespace tessera::cost
