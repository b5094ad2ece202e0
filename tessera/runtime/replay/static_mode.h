#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/process_group.h"
#include "tessera/comm/world.h"
#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/replay/recording.h"
#include "tessera/runtime/replay/static_program.h"
#include "tessera/runtime/server_context.h"
#include "tessera/runtime/step_factory.h"

namespace tessera::runtime {

/// Steps that must take the same path in static mode.
struct StepKind {
  std::string function; // type of the step function
  bool gradients = true; // grad mode of the step's caller
  /// Which models are there, which of them in training mode, and which parameters need gradients.
  std::string models = {};
  auto operator<=>(const StepKind&) const = default;
};

/// Decides, step by step, what each kind of step does: the first steps are
/// recorded, then all ranks agree on the fastest order, and from then on each
/// repeats it.
/// Threads: step thread only.
/// Source: Karakus et al. 2021, section 4.4.
class StaticMode {
 public:
  struct Options {
    int recorded_steps = 5; // T of the paper
    /// Fast mode: a verifying step comes before them.
    bool direct = false;
    /// See make_static_plan.
    bool exact_sums = false;
  };
  /// The objects that it works with; all outlive it.
  struct Context {
    const ModuleDirectory* modules = nullptr;
    comm::World* world = nullptr;
    const comm::ProcessGroup* all = nullptr; // the whole world
    const comm::ProcessGroup* pipeline = nullptr;
    /// The ranks that run tasks in one order; nullptr when each replica has its own order.
    const comm::ProcessGroup* ordered = nullptr;
    int rank = 0; // global, for messages
  };
  StaticMode(Options options, Context context);

  /// Makes `work` a step that is recorded or repeated. Not collective.
  /// Throws: UserError when steps of this kind were found to differ.
  void begin(const StepKind& kind, StepWork& work);

  /// Called when the step that began last has succeeded on all ranks. `seconds` is its time on this
  /// rank. Collective over the world after the last recorded step of a kind. Throws: UserError on
  /// every rank when the recorded steps took different paths, with what differs and where.
  void completed(double seconds);

 private:
  struct Kind {
    std::vector<Recording> recordings; // the first in full, of others turns
    std::vector<double> seconds;
    std::optional<std::string> difference; // found on this rank
    std::string refused; // found on any
    std::unique_ptr<StaticProgram> program;
  };

  int agree_on_fastest(Kind& kind) const;
  void make_program(Kind& kind, int fastest) const;

  Options options_;
  Context context_;
  std::map<StepKind, Kind> kinds_;
  Kind* running_ = nullptr;
  Recording recording_;
  std::unique_ptr<StepFactory> factory_; // of the step that began last
};

} // namespace tessera::runtime
