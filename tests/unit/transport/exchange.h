#pragma once

// What every transport must do, told from the side of one rank: the same
// checks run over threads (unit) and over processes (mpi). Each is collective
// over all ranks of the transport, whose global ranks are 0..size-1.

#include "tessera/transport/transport.h"

namespace tessera::transport::testing {

struct Side {
  Transport& transport;
  int rank = 0;
  int size = 1;
};

/// Nested values, every dtype, views, empty, undefined and meta tensors, to
/// every rank and to itself.
void check_values(const Side& side);

/// Numbered messages of random size (up to `largest` tensor bytes) from each
/// to each, from `threads` threads a rank; each thread's own must arrive in
/// order and with the right sums. All are sent before any is received when
/// `send_first`.
struct Traffic {
  int messages = 200; // from each thread to each rank
  int threads = 1;
  std::size_t largest = 100000;
  bool send_first = false;
  unsigned seed = 1;
};
void check_traffic(const Side& side, const Traffic& traffic);

/// A received tensor stays as it was while its sender changes the original and
/// sends `messages` more.
void check_lifetime(const Side& side, int messages);

/// Waits for the next message; fails after a minute.
Parcel take(const Side& side);

} // namespace tessera::transport::testing
