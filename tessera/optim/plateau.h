#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::optim {

struct PlateauOptions {
  double factor = 0.5; // by which the rate falls
  std::int64_t patience = 3; // evaluations without a lower loss before it does
  /// A loss counts as lower when it is by this share of the lowest.
  double threshold = 1e-4;
};

struct PlateauState {
  double factor = 1;
  std::optional<double> lowest; // loss so far
  std::int64_t without = 0; // evaluations since the lowest, or since the rate fell
};

/// Lowers a learning rate when the validation loss has stopped to fall.
///
///     optim::Plateau plateau({.patience = 2});
///     ...
///     plateau.observe(validation_loss); // the same number on every rank
///     optim::set_learning_rate(optimizer.inner(), rate.at(step, plateau.factor()));
///
/// A run that goes on keeps `to_json` in its checkpoint. Pure: a function of the losses that it was
/// told. Not collective. Threads: one thread.
class Plateau {
 public:
  /// Throws: ConfigError naming the field.
  explicit Plateau(const PlateauOptions& options);

  /// What an evaluation found; one that is no number is not lower. Returns whether the rate falls.
  bool observe(double loss);
  /// Of the rate, now: the options' factor to the power of how often it fell.
  double factor() const {
    return state_.factor;
  }

  std::string to_json() const;
  /// Throws: ConfigError naming `origin` and the field.
  void set_state(const std::string& json, const std::string& origin);

 private:
  PlateauOptions options_;
  PlateauState state_;
};

} // namespace tessera::optim
