#include "tessera/runtime/reproducible_orders.h"

namespace tessera::runtime {

void ReproducibleOrders::begin(int microbatches) {
  if (!context_.reproducible) {
    return;
  }
  follow_directory();
  gradients_.begin(parameters_, context_.schedule->positions(Phase::kBackward, microbatches));
}

void ReproducibleOrders::follow_directory() {
  if (revision_ == context_.modules->revision()) {
    return;
  }
  revision_ = context_.modules->revision();
  parameters_.clear();
  for (const auto& [name, parameter] : context_.modules->local_parameters()) {
    parameters_.push_back(parameter);
  }
  buffers_ = context_.modules->has_buffers()
                 ? std::make_unique<BufferOrder>(context_.modules->local_buffers())
                 : nullptr;
}

} // namespace tessera::runtime
