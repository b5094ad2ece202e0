#pragma once

#include "tessera/runtime/replay/recording.h"
#include "tessera/runtime/replay/static_program.h"
#include "tessera/runtime/step_factory.h"

namespace tessera::runtime {

/// Makes a plain step that is recorded.
class RecordedStepFactory : public StepFactory {
 public:
  /// `recording` outlives the steps.
  explicit RecordedStepFactory(Recording& recording) : recording_(recording) {}
  StepParts make(const StepResources& resources) override;

 private:
  Recording& recording_;
};

/// Makes a static step, which repeats a program.
class ReplayedStepFactory : public StepFactory {
 public:
  /// `program` outlives the steps.
  explicit ReplayedStepFactory(const StaticProgram& program) : program_(program) {}
  StepParts make(const StepResources& resources) override;

 private:
  const StaticProgram& program_;
};

} // namespace tessera::runtime
