#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/tessera.h"

#include "tests/equivalence/random.h"

/// What a script may do with its replicas beside feeding them: average gradients itself, and train
/// on with those that have data left.
namespace tessera::equivalence {

/// What averages gradients.
enum class HookKind {
  kLibrary,
  kAverage, // a hook that does what the library does
  kAverageNow, // one that waits, and multiplies the sum
  kEverySecond, // one that sends every second number of a parameter, and leaves zeros for the
                // others
};

struct ReplicaWays {
  HookKind hook = HookKind::kLibrary;
  /// Optimizer steps for which each replica has data; empty: all have for all.
  std::vector<int> steps_of_replica;
  /// Gradients of a step are divided by all replicas, not by those that have data.
  bool divides_by_all = true;

  bool uses_join() const {
    return !steps_of_replica.empty();
  }
  bool is_joined(int step, int replica) const {
    return uses_join() && steps_of_replica.at(static_cast<std::size_t>(replica)) <= step;
  }
  /// The first replica that has data in this step.
  int first(int step) const;
  /// What a replica's gradients are multiplied by in this step. `rows`: of each replica, as far as
  /// they count; empty: all count alike.
  double weight(int step, int replica, const std::vector<int>& rows) const;
};

/// `alone`: parameters are those of one process, under their names, in f32.
HookKind random_hook(Random& random, bool alone);
/// One replica at the least has data for all steps.
void draw_join(Random& random, int replicas, int steps, ReplicaWays& ways);

/// nullptr for kLibrary.
Model::CommHook hook_of(HookKind kind);
/// What is left of an average by kEverySecond.
torch::Tensor every_second(const torch::Tensor& average);

std::string to_text(const ReplicaWays& ways);

} // namespace tessera::equivalence
