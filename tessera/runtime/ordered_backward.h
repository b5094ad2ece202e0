#pragma once

#include <optional>
#include <vector>

#include "tessera/autograd/gradient_order.h"
#include "tessera/autograd/weight_gradient.h"
#include "tessera/runtime/call_record.h"

namespace tessera::runtime {

/// Records what the backward of a record will reach. `order` orders its gradients; it may be
/// nullptr.
void expect_backward(GradientOrder* order, CallRecord& record, int microbatch);

/// The WeightGradientPass around the backward of a record, ordered or not.
/// Not collective. Threads: whoever holds the baton; made and destroyed on one thread.
class OrderedBackward {
 public:
  /// `awaited` says that another rank waits for the end of this backward.
  OrderedBackward(
      GradientOrder* order,
      int microbatch,
      CallRecord& record,
      const std::vector<at::Tensor>& roots,
      bool awaited);
  /// Computes the weight gradients that were deferred.
  void catch_up();

 private:
  GradientOrder* order_;
  GradientOrder::GraphPtr graph_;
  std::optional<WeightGradientPass> pass_;
};

} // namespace tessera::runtime
