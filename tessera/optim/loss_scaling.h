#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/process_group.h"
#include "tessera/optim/loss_scaler.h"

namespace tessera::optim {

/// Returns whether a gradient has a number that is infinite or none, on any rank of the group.
/// Sparse ones are looked at as well. Collective over `group`: one all-reduce of a byte. Threads:
/// step thread only.
bool any_overflow(const std::vector<at::Tensor>& gradients, comm::ProcessGroup& group);

/// The loss scale of one optimizer, and what became of its last step. Threads: step thread only.
class LossScaling {
 public:
  /// Throws: ConfigError for options that contradict each other or are out of range.
  explicit LossScaling(const LossScaleOptions& options);

  LossScaler& scaler() {
    return *scaler_;
  }
  double scale() const {
    return scaler_->scale();
  }
  /// For who multiplies losses; it follows the scale, and ends with this.
  std::shared_ptr<const double> shared() const {
    return {scaler_, &scaler_->scale()};
  }
  /// Returns whether the last step was left out.
  bool overflow() const {
    return overflow_;
  }
  /// The end of a step, said alike by all ranks. `speaks`: this rank says a warning where the scale
  /// cannot fall.
  void update(bool overflow, bool speaks);

 private:
  std::shared_ptr<LossScaler> scaler_;
  bool overflow_ = false;
  bool warned_ = false; // of this run of overflows
};

} // namespace tessera::optim
