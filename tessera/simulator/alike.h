#pragma once

// This header is private to the simulator.

#include <vector>

#include "tessera/simulator/network.h"

namespace tessera::simulator {

/// What one replica does: figures of its tasks, and the links that its flows use, in the same order
/// as those of every other replica.
struct ReplicaWork {
  std::vector<double> figures = {};
  std::vector<LinkUse> uses = {};
};

/// Which replicas are alike, and which links.
struct Alike {
  /// For each replica the first one that it is alike to; itself if there is none before.
  std::vector<int> first = {};
  /// For each link the first one that it is alike to.
  std::vector<int> first_link = {};

  bool all_differ() const;
};

/// Finds replicas that take the same time at every moment of a simulation without jitter: they do
/// the same work, and the links that they use are alike, which they are if as fast, and used
/// equally often by replicas that are alike, for the same flow of theirs, and by the same flows of
/// groups. This is the coarsest equitable partition of replicas and links: on the links of one
/// class rates are the same, since progressive filling only sees how many streams of each class
/// there are. `groups` are flows of which there is one for all replicas. It is found in rounds that
/// divide classes; where more than some are needed all are said to differ, which is always right.
///
/// Cost: rounds x uses x log(uses).
/// Source: Cardon and Crochemore 1982 (partition refinement); Golubitsky and Stewart 2006,
/// Nonlinear dynamics of networks, section 4 (what a balanced partition leaves synchronous).
Alike find_alike(
    const std::vector<double>& bytes_per_s,
    const std::vector<ReplicaWork>& replicas,
    const std::vector<std::vector<LinkUse>>& groups);

/// Returns the uses of one replica that stands for all that are alike to it: over the first link of
/// each class, as many streams as all of them send there.
std::vector<LinkUse>
uses_for_all(const Alike& alike, const std::vector<ReplicaWork>& replicas, int replica);

} // namespace tessera::simulator
