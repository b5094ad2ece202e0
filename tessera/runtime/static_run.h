#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/runtime/exchange.h"
#include "tessera/runtime/recording.h"
#include "tessera/runtime/static_plan.h"

namespace tessera::runtime {

/// What a rank repeats in every static step of one kind.
struct StaticProgram {
  int number = 0; // of the kind of step, equal on all ranks
  RankPlan plan;
  Recording recording; // shapes, types, fields of the first recorded step
  /// By task: how often it gets the baton, joined turns included.
  std::map<std::uint64_t, int> turns;
  /// By task and turn: what the task waits for before it; no joined turns.
  std::map<std::pair<std::uint64_t, int>, LegId> waits;
  /// Received legs in words.
  std::map<LegId, std::shared_ptr<const std::string>> texts;
};

/// Packets of one step that have come and not all been used.
class PacketStore {
 public:
  explicit PacketStore(const StaticProgram& program) : program_(program) {}

  /// Bytes from another rank. Throws: CommError when their number is wrong.
  void put(const LegId& packet, at::Tensor bytes);
  /// Tensors that this rank sends itself.
  void put(const LegId& packet, std::vector<at::Tensor> tensors);
  bool has(const LegId& packet) const {
    return arrived_.contains(packet);
  }
  /// The tensor at a place. Each use gets a tensor of its own; `may_change`: it
  /// is user code's to write into, and shares memory with no other use.
  at::Tensor take(const PacketPlace& place, bool may_change);

 private:
  struct Arrived {
    std::vector<at::Tensor> tensors;
    std::vector<int> uses; // left
    int left = 0; // uses of all
  };
  void keep(const LegId& packet, std::vector<at::Tensor> tensors);
  const TensorForm& form_of(const Slot& slot) const;

  const StaticProgram& program_;
  std::map<LegId, Arrived> arrived_;
};

/// The legs of a static step: only tensors travel, each to the ranks that read
/// it, and what a rank does otherwise than recorded is an error there.
class StaticExchange : public Exchange {
 public:
  /// All outlive it. `pp_ranks`: global rank of each pp rank.
  StaticExchange(
      Server& server,
      transport::Transport& transport,
      const ModuleTable& modules,
      const std::vector<int>& pp_ranks,
      const StaticProgram& program,
      std::int64_t serial);

  void request(Task& task, const Fields& fields, int owner, Content content)
      override;
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

  /// A task is about to wait, which its program must know of.
  /// Throws: UserError.
  void check_pause(const Task& task) const;

  /// A task has come to its end: it must have had all its turns.
  /// Throws: UserError that names module and microbatch.
  void check_finished(const Task& task) const;

  const StaticProgram& program() const {
    return program_;
  }

 private:
  const RecordedLeg* find(const LegId& id) const;
  void send(const LegId& id, const Fields& fields, const Content& content);
  Content receive(const LegId& id);
  void check_origins(
      const LegId& id,
      const std::string& what,
      const std::vector<at::Tensor>& tensors) const;

  Server& server_;
  transport::Transport& transport_;
  const ModuleTable& modules_;
  const std::vector<int>& pp_ranks_;
  const StaticProgram& program_;
  const std::int64_t serial_;
  PacketStore store_;
  std::size_t next_ = 0; // of the plan's turns
};

/// What to do about a flow that changed; the end of every such message.
extern const char* const kStaticAdvice;

} // namespace tessera::runtime
