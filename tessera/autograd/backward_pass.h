#pragma once

#include <functional>

#include <torch/csrc/autograd/function.h>

namespace tessera {

/// What a running backward of the library does with additions to gradients. Hooks on accumulators
/// ask the pass of their thread; a backward that a script runs has none.
class BackwardPass {
 public:
  BackwardPass();
  virtual ~BackwardPass();
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

  /// The innermost one of this thread, or nullptr.
  static BackwardPass* current();

  /// Returns whether a GradientOrder decides when this accumulator is added to.
  virtual bool orders(const torch::autograd::Node* accumulator) const = 0;
  /// Only for an accumulator that is ordered: see GradientOrder::add.
  virtual void add(const torch::autograd::Node* accumulator, std::function<void()> addition) = 0;
  /// Returns whether the addition of this accumulator was deferred and is still to come.
  virtual bool awaits(const torch::autograd::Node* accumulator) const = 0;

 private:
  BackwardPass* previous_;
};

} // namespace tessera
