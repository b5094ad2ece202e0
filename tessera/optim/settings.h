#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::optim {

class DistributedOptimizer;

/// What one optimizer has to have alike on all ranks of a job. Ranks send it as a tessera::Value.
struct OptimizerSettings {
  std::int64_t parameters = 0; // that it was made with
  std::int64_t updates = 0; // calls of `step`
  std::vector<double> rates; // learning rate of each parameter group
  std::vector<std::string> options; // its others in words; "" where none names its options
};
/// Of all optimizers, in the order in which they were made.
using Settings = std::vector<OptimizerSettings>;

/// Returns those of this rank's optimizers. Not collective.
Settings settings_of(const std::vector<DistributedOptimizer*>& optimizers);

/// Returns a hash of them, by which ranks that hold the same parameters tell that nothing differs.
std::uint64_t digest(const Settings& settings);

/// Returns in words what differs, and what to do; "" where nothing does. Learning rates and other
/// options are only compared where both optimizers have as many parameters and groups: one that was
/// made of a rank's own parameters may have other groups than that of another rank.
std::string difference(const Settings& mine, int my_rank, const Settings& theirs, int their_rank);

} // namespace tessera::optim
