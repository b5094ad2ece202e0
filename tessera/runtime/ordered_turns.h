#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/runtime/dynamic_turns.h"
#include "tessera/runtime/order_channel.h"

namespace tessera::runtime {

/// On the leader of an OrderChannel: chooses as DynamicTurns does and announces each choice.
class LeaderTurns : public DynamicTurns {
 public:
  explicit LeaderTurns(const StepResources& resources);

  std::optional<Choice> next() override;
  bool on_server_thread_only() const override {
    return true;
  }
  void step_ended(bool failed) override;

 private:
  OrderChannel& order_;
};

/// On the followers: runs what the leader announced, each task as soon as it is here.
///
/// What is left when the leader has ended its step has no counterpart there. It may hold
/// collectives, so it is refused instead of run.
class FollowerTurns : public DynamicTurns {
 public:
  explicit FollowerTurns(const StepResources& resources);

  std::optional<Choice> next() override;
  Heard listen(std::chrono::milliseconds timeout) override;
  bool on_server_thread_only() const override {
    return true; // a choice may have to be refused
  }
  std::string order_text() const override;

 private:
  std::vector<Choice> choices() const;
  std::string refusal_of(const Choice& choice) const;

  OrderChannel& order_;
  StepControl& control_;
  std::optional<std::uint64_t> announced_; // and not run here yet
  bool leader_ended_ = false;
};

} // namespace tessera::runtime
