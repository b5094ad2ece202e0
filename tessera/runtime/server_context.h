#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "tessera/random/stream.h"
#include "tessera/recompute/keeper.h"
#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/protocol.h"
#include "tessera/schedule/schedule.h"
#include "tessera/timeline/timeline.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

class OrderChannel;
class StepFactory;

/// What the server of one rank works with; all outlive it.
struct ServerContext {
  const ModuleDirectory* modules = nullptr;
  transport::Transport* transport = nullptr;
  std::vector<int> pp_ranks; // global rank of each pp rank of this pipeline
  const schedule::Schedule* schedule = nullptr;
  OrderChannel* order = nullptr; // nullptr: own order
  timeline::Recorder* recorder = nullptr;
  recompute::Keeper* keeper = nullptr; // nullptr: regions keep their inputs themselves
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  std::uint64_t seed = 0;
  /// Each task draws from a stream of its own. This is false where several servers share a process,
  /// and so the one default generator (tests).
  bool random_streams = true;
  int rank = 0; // global, for messages
  /// Gradients are added, and buffers changed, in an order that does not depend
  /// on timing.
  bool reproducible = false;
  /// Called at once, with the error's text, when a task of this rank has failed:
  /// other ranks may be waiting for it in a collective.
  std::function<void(const std::string&)> failed;

  /// Returns whether this rank runs the step function.
  bool root() const {
    return modules->pp_rank() == 0;
  }
  /// Sends from pp rank 0 to every other rank of the pipeline.
  void send_to_others(const Fields& fields, const c10::IValue& body = {}) const {
    for (std::size_t i = 1; i < pp_ranks.size(); ++i) {
      transport->send(pp_ranks[i], to_header(fields), body);
    }
  }
};

/// What to do in one step.
struct StepWork {
  /// The training's step: it names events. It may decrease when an older checkpoint is loaded.
  std::int64_t step = 0;
  /// Seeds the random streams (train::StepNumbers).
  std::int64_t draws = 0;
  /// It rises with every step that the transport sees, and is equal on all ranks. It identifies
  /// messages that arrive late, from a step that failed.
  std::int64_t serial = 0;
  int microbatches = 1;
  /// Steps of one kind take the same path, but for data-dependent flow. Equal
  /// kinds on one rank are equal on all.
  std::uint64_t kind = 0;
  /// The user's step function on one microbatch; used on pp rank 0 only.
  std::function<c10::IValue(int microbatch)> run;
  /// What every rank of the pipeline has to have alike: pp rank 0 sends its own with the end of the
  /// step. `check_agreed` returns in words how this rank's differs; "" where it does not.
  c10::IValue agreed;
  std::function<std::string(const c10::IValue& of_leader)> check_agreed;
  /// One task runs at a time and there is one replica: the step draws from the script's own stream
  /// of random numbers, as a single process would.
  bool script_stream = false;
  /// Random numbers of torch's dropout are functions of their place in the step's batch; nullptr:
  /// they come from the stream of the task.
  std::shared_ptr<const random::Layout> random_layout;
  /// Makes the parts of the step, the same on all ranks of the pipeline; nullptr means a plain
  /// step.
  StepFactory* factory = nullptr;
};

} // namespace tessera::runtime
