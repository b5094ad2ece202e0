#pragma once

#include <cstdint>

namespace tessera::train {

/// Counts steps, and says by which number a step draws random numbers. Steps that learn are counted
/// apart from those that only evaluate, so that the masks of a training do not depend on how often
/// it validates. Threads: step thread only.
class StepNumbers {
 public:
  /// Returns the number of the next step, which no other step of the run has: the number of those
  /// that have learnt, or one from 2^31 on for a step that evaluates. The first of these behind a
  /// step that learns has the same one in a resumed run.
  std::int64_t draws(bool learns) {
    if (learns) {
      evaluated_ = 0;
      return learnt_++;
    }
    constexpr std::int64_t kFirst = std::int64_t{1} << 31;
    constexpr std::int64_t kEach = 1024; // evaluations behind one step that learns
    return kFirst + (learnt_ * kEach + evaluated_++) % kFirst;
  }
  std::int64_t learnt() const {
    return learnt_;
  }
  /// For a resumed run: random streams go on where they were.
  void set_learnt(std::int64_t steps) {
    learnt_ = steps;
    evaluated_ = 0;
  }

 private:
  std::int64_t learnt_ = 0;
  std::int64_t evaluated_ = 0;
};

} // namespace tessera::train
