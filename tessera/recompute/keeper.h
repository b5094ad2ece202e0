#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

/// Where the inputs of recomputed regions are kept until the regions run again.
namespace tessera::recompute {

/// The forward or the backward that a rank runs for one microbatch, or a call of it.
struct PipelineTask {
  int microbatch = 0;
  bool backward = false;
  bool operator==(const PipelineTask&) const = default;
};

/// The tensors that one call of a region keeps.
/// Threads: as the call; its end may come on any thread that has the baton.
class KeptTensors {
 public:
  virtual ~KeptTensors() = default;
  /// Returns the tensors in the order in which they were given, with their bytes; a second call
  /// returns the same. It may wait for a copy. Throws: ConfigError when the bytes cannot be read.
  virtual std::vector<at::Tensor> get() = 0;
};

/// Keeps tensors elsewhere than in the memory in which they were made.
///
/// Not collective. Threads: those that run tasks of a step, one at a time.
class Keeper {
 public:
  virtual ~Keeper() = default;

  /// Called after the forward of a region in a task of `microbatch`; undefined tensors are among
  /// `tensors`. The result may outlive the keeper.
  /// Throws: ConfigError when there is no place for them.
  virtual std::unique_ptr<KeptTensors> keep(std::vector<at::Tensor> tensors, int microbatch) = 0;

  // What this rank does, so that tensors can be there when they are needed.
  /// Steps of one `kind` run tasks in about the same order.
  virtual void step_begins(std::uint64_t kind) = 0;
  virtual void task_begins(PipelineTask task) = 0;
  virtual void step_ended() = 0;
};

/// While one lives on this thread, regions of a task of `microbatch` keep their inputs with
/// `keeper`; with nullptr they keep them themselves. Scopes nest.
class KeeperScope {
 public:
  KeeperScope(Keeper* keeper, int microbatch);
  ~KeeperScope();
  KeeperScope(const KeeperScope&) = delete;
  KeeperScope& operator=(const KeeperScope&) = delete;

  /// Returns the innermost one of this thread; nullptr when none is there or it has no keeper.
  static const KeeperScope* current();

  Keeper& keeper() const {
    return *keeper_;
  }
  int microbatch() const {
    return microbatch_;
  }

 private:
  const KeeperScope* previous_;
  Keeper* keeper_;
  int microbatch_;
};

} // namespace tessera::recompute
