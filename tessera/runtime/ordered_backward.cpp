#include "tessera/runtime/ordered_backward.h"

#include <utility>

#include "tessera/runtime/remote_backward.h"

namespace tessera::runtime {

void expect_backward(GradientOrder* order, CallRecord& record, int microbatch) {
  if (order != nullptr && !record.outputs.empty()) {
    record.targets = targets_below(record.outputs, RemoteBackward::is);
    record.graph = order->expect(microbatch, record.targets);
  }
}

OrderedBackward::OrderedBackward(
    GradientOrder* order,
    int microbatch,
    CallRecord& record,
    const std::vector<at::Tensor>& roots,
    bool awaited)
    : order_(order), graph_(record.graph) {
  const WeightGradientPass::Awaited waiting{awaited, RemoteBackward::is};
  if (order_ == nullptr) {
    pass_.emplace(roots, waiting);
    return;
  }
  order_->started(microbatch);
  pass_.emplace(std::move(record.targets), waiting, *order_, graph_);
}

void OrderedBackward::catch_up() {
  pass_->catch_up();
  if (order_ != nullptr) {
    order_->ended(*graph_);
  }
}

} // namespace tessera::runtime
