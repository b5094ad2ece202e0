#include "tessera/cost/constants.h"

namespace tessera::cost {

Constants runtime_constants(const Cluster& cluster, Precision precision) {
  Constants constants;
  const bool half = precision == Precision::kHalf;
  // Gradients are reduced in buckets of the parameters' type, in which they are made.
  // Half-precision ones are then copied to f32, because they are applied to f32 master weights.
  constants.gradient_wire_bytes = half ? 2 : 4;
  constants.gradient_copies_bytes = half ? 2 + 4 : 0;
  // Bytes of AdamW, operator by operator, in f32: decay 8; first moment 8 + 12; second
  // moment 8 + 16; its root, the correction and epsilon 8 + 8 + 8; the update 16;
  // clipping by norm 4 + 8. Half precision adds the casts both ways, 6 + 6.
  constants.optimizer_traffic_bytes = half ? 104 + 12 : 104;
  if (cluster.measured) {
    constants.link_efficiency = 1;
    constants.memory_efficiency = 1;
    // The measured memory was free beside a running process, so nothing comes off it.
    constants.context_bytes = 0;
    if (cluster.latency_seconds() > 0) {
      constants.link_latency_seconds = cluster.latency_seconds();
    }
  }
  return constants;
}

} // namespace tessera::cost
