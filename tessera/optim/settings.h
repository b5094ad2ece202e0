#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::optim {

class DistributedOptimizer;

/// What a job's optimizers have to have alike on all ranks, as numbers that ranks send each other:
/// of each, how many parameters it was given, how often `step` was called, how many groups it has,
/// and the learning rate of each group.
using Settings = std::vector<double>;

/// Returns those of this rank's optimizers, in the order in which they were made. Not collective.
Settings settings_of(const std::vector<DistributedOptimizer*>& optimizers);

/// Returns a hash of them, by which ranks that hold the same parameters tell that nothing differs.
std::uint64_t digest(const Settings& settings);

/// Returns in words what differs, and what to do; "" where nothing does. Learning rates are only
/// compared where both optimizers have as many parameters and groups: one that was made of a rank's
/// own parameters may have other groups than that of another rank.
std::string difference(const Settings& mine, int my_rank, const Settings& theirs, int their_rank);

} // namespace tessera::optim
