#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera::autotune {

/// Chooses the pairs of ranks whose messages are measured, given the host of every rank.
///
/// All pairs of at most `most_ranks` ranks. With more ranks, as many of each host as make up
/// `most_ranks`, but at least two, and all pairs of them. Where even two of each host are more than
/// `most_ranks`: one pair inside each host, and one for each host and the next and for every two of
/// `most_ranks` hosts. So every host has a pair inside it (if it has two ranks) and one with
/// another host, and the number of pairs grows no faster than the number of hosts. Returns pairs
/// (first < second) in ascending order. Not collective.
std::vector<std::pair<int, int>> pairs_to_measure(
    const std::vector<std::string>& host_of_rank,
    int most_ranks);

} // namespace tessera::autotune
