#pragma once

#include <optional>
#include <string>

#include "tessera/data_parallel/parameter_set.h"

namespace tessera::data_parallel {

/// How the gradients of some of a model's parameters become averages over its replicas. A
/// GradientSync has one for each way in which parameters are held.
/// Threads: step thread only, but for additions to gradients.
class GradientPart {
 public:
  virtual ~GradientPart() = default;

  /// Starts a step; `reduce` false: gradients of this step only add up. Not collective.
  virtual void begin(bool reduce) = 0;
  /// Returns whether this step has added to any gradient here so far. Not collective.
  virtual bool had_backward() const = 0;
  /// Tells that some rank's step has. Not collective.
  virtual void expect_backward() = 0;
  /// Ends the step and returns whether any rank had a backward in it. Collective over the
  /// data-parallel ranks. `failure`: this rank's step failed.
  /// Throws: UserError with the failing rank's text when any rank failed.
  virtual bool finish(const std::optional<std::string>& failure) = 0;
  /// A script sets gradients to zero, perhaps while a step runs: what they were, and is out of the
  /// script's sight now, is not added again. `of`: those of these parameters, nullptr: all.
  /// `set_to_none` false: they become zeros. Not collective.
  virtual void forget_averages(const ParameterSet* of, bool set_to_none) = 0;
};

/// One that looks itself for what was added outside of a step.
class SettlingGradientPart : public GradientPart {
 public:
  /// Makes averages of gradients that no step averaged. Collective over the data-parallel ranks.
  virtual void average_rest() = 0;
};

} // namespace tessera::data_parallel
