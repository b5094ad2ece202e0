#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::cli {

/// What a job says about steps whose update would spoil the model.
struct BadStepPolicy {
  /// What to do about a loss or gradient that is not finite: "stop" ends the run, "skip" omits the
  /// update.
  std::string not_finite = "stop";
  /// The update is omitted when the gradient norm is more than this many times the running one; 0:
  /// never.
  double spike = 0;
  /// How many updates in a row may be omitted; one more ends the run.
  std::int64_t most_skipped = 10;
};

/// What one rank knows of a step before the update.
struct StepHealth {
  double loss = 0;
  double grad_norm = 0; // over the whole model, before clipping
};

/// Decides whether the update of a step is applied. Every rank passes the same figures, which are
/// those of all ranks, and so gets the same answer.
///
/// The running gradient norm is a mean of the norms of applied updates: the arithmetic mean of the
/// first twenty, after which each new norm has the weight 1/20. Spikes are detected from the
/// eleventh applied update on. Not collective. Threads: one at a time.
class BadStepJudge {
 public:
  /// Throws: ConfigError for a policy out of range.
  explicit BadStepJudge(const BadStepPolicy& policy);

  /// Returns "" when the update is to be applied, else why it is omitted. `step`
  /// counts from 1; `where` is called only when something is not finite, and
  /// returns what that was.
  /// Throws: AgreedError that names step, figures and what to write.
  std::string judge(
      std::int64_t step,
      const std::vector<StepHealth>& ranks,
      const std::function<std::string()>& where);

  std::int64_t skipped() const {
    return skipped_;
  }
  /// Whether the loss or a gradient of the last step was not finite, perhaps because the parameters
  /// are not.
  bool in_doubt() const {
    return in_doubt_;
  }

  /// Serialises the counts and the running norm for a checkpoint.
  std::string to_json() const;
  /// Throws: Error naming the field.
  void set_state(const std::string& json, const std::string& origin);

 private:
  std::string skip(std::int64_t step, const std::string& why);
  template <typename Visit>
  void describe_state(Visit& visit);

  BadStepPolicy policy_;
  std::int64_t skipped_ = 0;
  std::int64_t in_a_row_ = 0;
  bool in_doubt_ = false;
  std::int64_t applied_ = 0;
  double running_norm_ = 0;
};

} // namespace tessera::cli
