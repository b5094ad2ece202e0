#include "tessera/train/optimizer.h"

#include "tessera/train/engine.h"
#include "tessera/train/session.h"

namespace tessera {

DistributedOptimizer::DistributedOptimizer(
    std::unique_ptr<torch::optim::Optimizer> optimizer,
    const LossScaleOptions& loss_scale)
    : optim::DistributedOptimizer(std::move(optimizer), train::engine().model_set(), loss_scale) {}

} // namespace tessera
