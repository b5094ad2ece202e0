#pragma once

#include <string>
#include <vector>

#include "tessera/runtime/exchange.h"
#include "tessera/runtime/packet_store.h"
#include "tessera/runtime/static_program.h"

namespace tessera::runtime {

/// The legs of a static step: only tensors travel, each to the ranks that read
/// it, and what a rank does otherwise than recorded is an error there.
class StaticExchange : public Exchange {
 public:
  /// All outlive it. `pp_ranks`: global rank of each pp rank.
  StaticExchange(
      Server& server,
      transport::Transport& transport,
      const ModuleDirectory& modules,
      const std::vector<int>& pp_ranks,
      const StaticProgram& program,
      std::int64_t serial);

  void request(Task& task, const Fields& fields, int owner, Content content) override;
  Content response(Task& task, const Fields& fields, int owner) override;
  Content arguments(Task& task) override;
  void respond(Task& task, Content content) override;
  c10::IValue read(c10::IValue value) override;

  /// The next turn of the program when all that it needs is there.
  const PlannedTurn* ready_turn();
  /// The next turn, ready or not; nullptr at the end.
  const PlannedTurn* next_turn() const;
  /// `ready_turn` has begun.
  void advance() {
    ++next_;
  }
  /// A task of another rank's call, as a request would have made it.
  Fields fields_of(const PlannedTurn& turn) const;

  /// A message of kind kPacket.
  void take(const Fields& fields, const c10::IValue& body);

  /// A microbatch is about to wait for the schedule to start its backward.
  /// Throws: UserError when its program does not do so there.
  void before_schedule(const Task& task);

  /// A task has come to its end: it must have had all its turns.
  /// Throws: UserError that names module and microbatch.
  void check_finished(const Task& task) const;

  const StaticProgram& program() const {
    return program_;
  }

 private:
  const RecordedLeg* find(const LegId& id) const;
  /// Runs what throws when the task leaves its program.
  template <typename Run>
  void following(const Task& task, const Run& run);
  /// `call`: what the task waits for; 0: the schedule.
  void check_pause(const Task& task, std::uint64_t call) const;
  void send(const LegId& id, const Fields& fields, const Content& content);
  Content receive(const LegId& id);
  void check_same(const LegId& id, const Fields& fields, const Content& content) const;
  void check_origins(const LegId& id, const Fields& fields, const std::vector<at::Tensor>& tensors)
      const;
  std::string text(const LegId& id, const Fields& fields) const;

  Server& server_;
  transport::Transport& transport_;
  const ModuleDirectory& modules_;
  const std::vector<int>& pp_ranks_;
  const StaticProgram& program_;
  const std::int64_t serial_;
  PacketStore store_;
  std::size_t next_ = 0; // of the plan's turns
};

/// What to do about a flow that changed; the end of every such message.
extern const char* const kStaticAdvice;

} // namespace tessera::runtime
