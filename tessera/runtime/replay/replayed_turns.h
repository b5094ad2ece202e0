#pragma once

#include <memory>
#include <string>

#include "tessera/runtime/replay/packet_store.h"
#include "tessera/runtime/replay/static_program.h"
#include "tessera/runtime/step_resources.h"
#include "tessera/runtime/turn_source.h"

namespace tessera::runtime {

/// The turns of a static step: those of the program in its order, each as soon as the packets that
/// it needs are there. Buffers keep the order that the recorded step had.
class ReplayedTurns : public TurnSource {
 public:
  /// All arguments outlive it.
  ReplayedTurns(
      const StepResources& resources,
      const StaticProgram& program,
      std::shared_ptr<const PacketStore> packets);

  std::optional<Choice> next() override;
  /// The planned turn, where it can begin and does not wait for the end of one before it, so turns
  /// begin in the recorded order all the same. Never the last one of a rank that does not report:
  /// what that turn sends tells other ranks that this one has done all of its turns.
  std::optional<Choice> awaited() override;
  bool done() const override;
  void take(const Fields& fields) override;
  void check_finished(const Task& task) const override;
  std::string waits_for() const override;

 private:
  const PlannedTurn* planned() const;
  bool is_awaited(const Turn& turn) const;
  bool can_begin(const PlannedTurn& turn) const;
  bool shows_the_end(const PlannedTurn& turn) const;
  void report_done();
  Choice choice_of(const PlannedTurn& turn) const;
  static Choice choice_of(const SuspendedTask& held);
  Choice choice_to_resume(const Turn& turn) const;
  Choice choice_of_call(const Turn& turn) const;
  Choice choice_of_root(const Turn& turn) const;

  const ServerContext& context_;
  const StepTasks& tasks_;
  const StepControl& control_;
  const StaticProgram& program_;
  std::int64_t serial_;
  std::shared_ptr<const PacketStore> packets_;
  std::size_t next_ = 0; // of the plan's turns
  bool reported_ = false; // that all turns of this rank were had
  int reports_ = 0; // of other ranks, on pp rank 0
};

} // namespace tessera::runtime
