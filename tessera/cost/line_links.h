#pragma once

namespace tessera::cost {

/// The rows, or the columns, of the meshes of a stage, each of which broadcasts and reduces at the
/// same time as all others. A message travels down a tree: levels between the nodes of its line,
/// then levels inside them.
/// Source: Xu et al. 2021, equation (4), which does not distinguish links.
struct LineLinks {
  double seconds_per_byte = 0; // of the slowest line
  double message_seconds = 0; // the levels' latency of one message
};

} // namespace tessera::cost
