#pragma once

namespace tessera::autotune {

/// Messages between two ranks, there and back.
struct PairFacts {
  int first = 0;
  int second = 0;
  double latency_us = 0; // one way, smallest message, median
  double bytes_per_s = 0; // one way, 16 MiB, until the receiver has a copy
  bool shared_memory = false;
};

} // namespace tessera::autotune
