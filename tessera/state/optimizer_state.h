#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/state/fields.h"
#include "tessera/tensor/named_tensors.h"

namespace torch::optim {
class Optimizer;
}

namespace tessera::state {

/// All that an optimizer would do differently after a restart, by the names of
/// parameters, so that it fits any division of the model over ranks.
struct OptimizerState {
  struct Group {
    std::vector<std::string> parameters;
    Fields options; // learning rate and the like
  };

  std::string kind; // "Adam"
  std::vector<Group> groups;
  /// parameter -> its state; none before its first step
  std::map<std::string, Fields> parameters;
};

/// Reads the state of any optimizer of torch::optim but its LBFGS (a DistributedOptimizer has its
/// own), or of a registered one (optimizer_registry.h). Tensors are the optimizer's own, not
/// copies: write or clone them before the next step.
///
/// `parameters` names every tensor that the optimizer holds; of two names of
/// one tensor the first counts.
///
/// Threads: step thread only. Not collective.
/// Throws: CheckpointError when the optimizer's kind is not known or cannot be
/// divided by parameter, or one of its tensors has no name.
OptimizerState capture(const torch::optim::Optimizer& optimizer, const NamedTensors& parameters);

/// Puts `state` into an optimizer of the same kind, whose next step is then
/// what the captured one's would have been, bit for bit. The state may hold
/// more parameters than this optimizer, and in other groups, as long as all
/// parameters of one of its groups were saved with equal options. State goes
/// to the parameter's device; a tensor that nobody else holds is taken, not
/// copied, so move a loaded state in. On an error nothing has changed.
///
/// Threads: step thread only. Not collective.
/// Throws: CheckpointError that lists every parameter that is missing or whose
/// state has another shape, or says which kind was saved.
void restore(
    torch::optim::Optimizer& optimizer,
    OptimizerState state,
    const NamedTensors& parameters);

} // namespace tessera::state
