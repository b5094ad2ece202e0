#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace tessera::optim {
class DistributedOptimizer;
}

namespace tessera::amp {

/// torch's names and defaults.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000; // updates without overflow
  bool enabled = true; // false: everything is as without a GradScaler
};

/// Loss scaling for a model of f32 parameters whose forward runs under autocast, in place of
/// torch's, which knows nothing of other ranks:
///
///     model.backward(scaler.scale(loss));   // in the step function
///     ...
///     scaler.unscale_(optimizer);           // only in order to clip before
///     optimizer.clip_grad_norm(1.0);
///     scaler.step(optimizer);               // left out where a gradient is not finite
///     scaler.update();
///
/// Whether a gradient is finite is agreed over all ranks, so all leave out the same steps and have
/// the same scale. Threads: step thread only; `scale` also from the step function.
/// Source: the library's documentation, `amp.GradScaler`; torch.cuda.amp.GradScaler.
class GradScaler {
 public:
  /// Throws: ConfigError naming the option: a scale that is not above 0, a growth_factor of 1 or
  /// less, a backoff_factor outside of 0 to 1, an interval below 1.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// Returns the loss multiplied by the scale. Not collective.
  at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the optimizer's gradients by the scale, averaging them over the replicas before.
  /// Collective over the world.
  /// Throws: UserError when that was done since the last `update`; ConfigError for an optimizer
  /// under the key fp16.
  void unscale_(optim::DistributedOptimizer& optimizer);
  /// Runs the optimizer's step, after `unscale_` unless that was called; returns false where it was
  /// left out.
  /// Collective over the world. Throws: UserError for a second one without `update`.
  bool step(optim::DistributedOptimizer& optimizer);
  /// Is called once after the steps of all optimizers: the scale falls when any of them was left
  /// out, and grows after growth_interval updates without that. Not collective. Throws: UserError
  /// when no optimizer was stepped or unscaled.
  void update();

  double get_scale() const {
    return options_.enabled ? scale_ : 1;
  }
  /// Scale and count as JSON, for the user content of a checkpoint. Not collective.
  std::string state_dict() const;
  /// Throws: Error naming the field.
  void load_state_dict(const std::string& state);

 private:
  struct Progress {
    bool found_inf = false;
    bool stepped = false;
  };
  template <typename Visit>
  void describe_state(Visit& visit);

  GradScalerOptions options_;
  double scale_;
  std::int64_t growth_tracker_ = 0;
  std::map<const optim::DistributedOptimizer*, Progress> unscaled_; // since the last update
};

} // namespace tessera::amp
