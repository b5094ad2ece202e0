#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/runtime/exchange.h"
#include "tessera/runtime/replay/packet_store.h"
#include "tessera/runtime/replay/static_program.h"
#include "tessera/runtime/step_resources.h"

namespace tessera::runtime {

/// The messages of a static step: only tensors travel, each to the ranks that read
/// it, and what a rank does otherwise than recorded is an error there.
/// Not collective. Threads: whoever holds the baton.
class StaticExchange : public Exchange {
 public:
  /// `resources` and `program` outlive it. `packets` holds what has come and is shared with the
  /// step's turns.
  StaticExchange(
      const StepResources& resources,
      const StaticProgram& program,
      std::shared_ptr<PacketStore> packets);

  void request(Task& task, const Fields& fields, int owner, Content content) override;
  Content response(Task& task, const Fields& fields, int owner) override;
  Content arguments(Task& task) override;
  void respond(Task& task, Content content) override;
  void respond_failure(Task& task, std::string text) override;
  bool accepts(const Fields& fields) const override;
  void take_packet(const Fields& fields, const c10::IValue& body) override;
  /// Throws: UserError when the task's program does not wait for the schedule there.
  void before_schedule(const Task& task) override;
  c10::IValue read(c10::IValue value) override;

 private:
  const RecordedMessage* find(const MessageId& id) const;
  /// Runs what throws when the task leaves its program.
  template <typename Run>
  void following(const Task& task, const Run& run);
  /// `call` is what the task waits for; 0 is the schedule.
  void check_pause(const Task& task, std::uint64_t call) const;
  void send(const MessageId& id, const Fields& fields, const Content& content);
  Content receive(const MessageId& id);
  void check_same(const MessageId& id, const Fields& fields, const Content& content) const;
  void check_origins(
      const MessageId& id,
      const Fields& fields,
      const std::vector<at::Tensor>& tensors) const;
  std::string text(const MessageId& id, const Fields& fields) const;

  const ServerContext& context_;
  StepControl& control_;
  const StaticProgram& program_;
  std::int64_t serial_;
  std::shared_ptr<PacketStore> packets_;
};

} // namespace tessera::runtime
