#pragma once

namespace tessera::autotune {

/// The speed of messages between two ranks, from exchanges in both directions.
struct PairFacts {
  int first = 0;
  int second = 0;
  double latency_us = 0; // one way, median of messages of one element
  double bytes_per_s = 0; // one way, 16 MiB, including the receiver's copy
  bool shared_memory = false;
};

} // namespace tessera::autotune
