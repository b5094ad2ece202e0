// DistributedOptimizer's part of states: this rank's, whole ones, and what a checkpoint writes.
#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/context/context.h"
#include "tessera/model/model_core.h"
#include "tessera/model/model_set.h"
#include "tessera/optim/distributed_optimizer.h"
#include "tessera/optim/loss_scaling.h"
#include "tessera/optim/master_weights.h"
#include "tessera/optim/state_sharing.h"
#include "tessera/state/optimizer_parts.h"
#include "tessera/state/sharded_state.h"
#include "tessera/tensor/map_tensors.h"

namespace tessera::optim {

using model::ModelCore;

state::OptimizerState DistributedOptimizer::local_state_dict(bool gather_if_shard) {
  model().plan(); // throws before the partition
  prepare();
  StateSharing::Content own{updated_tensors(), {}};
  own.state = state::capture(*optimizer_, own.parameters);
  if (gather_if_shard) {
    sharing_->gather(context(), model(), false, own);
  }
  return std::move(own.state);
}

DistributedOptimizer::Content DistributedOptimizer::content(bool whole) {
  const ModelCore& of = model();
  of.plan();
  prepare();
  StateSharing::Content own{updated_tensors(), {}};
  own.state = state::capture(*optimizer_, own.parameters);
  // Distributed modules are put together from all that a TP_GROUP holds of them, and its ranks
  // divide among themselves what all of them hold: each needs the whole for both.
  const bool all_write = !whole && of.state_layout().parts() == 1 &&
                         context().group(Group::kTP).size() == 1 && sharing_->in_use({&model()});
  if (all_write) {
    sharing_->keep_own(context(), of, own);
  } else {
    sharing_->gather(context(), of, true, own);
  }
  return {std::move(own.parameters), std::move(own.state), all_write};
}

state::OptimizerState DistributedOptimizer::state_dict() {
  const Context& context = this->context();
  const ModelCore& of = model();
  state::OptimizerState local = local_state_dict();
  if (of.shards() != nullptr) {
    local = state::whole_state(of.shards()->parameters(), std::move(local), true);
  }
  const auto parts = comm::all_gather_object(
      *context.world,
      context.group(Group::kMP),
      state::pack_state(of.state_layout().whole_share(local)));
  state::OptimizerState whole;
  for (const auto& part : parts) {
    state::merge_into(whole, state::unpack_state(part));
  }
  for (auto& [name, fields] : whole.parameters) {
    for (auto& [key, value] : fields) {
      value = map_tensors(value, [](const at::Tensor& tensor) { return tensor.clone(); });
    }
  }
  return whole;
}

void DistributedOptimizer::load_state_dict(state::OptimizerState state) {
  ModelCore* const of = &model();
  auto shared = std::make_shared<state::OptimizerState>(std::move(state));
  of->on_partition([this, of, shared] {
    prepare();
    state::OptimizerState local = of->state_layout().to_local(*shared);
    if (of->shards() != nullptr) {
      local = state::part_state(of->shards()->parameters(), std::move(local));
    }
    state::restore(*optimizer_, std::move(local), updated_tensors());
  });
}

} // namespace tessera::optim
