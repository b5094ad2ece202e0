#pragma once

#include <vector>

#include "tessera/runtime/step_resources.h"
#include "tessera/runtime/turn_source.h"

namespace tessera::runtime {

/// Chooses among what could run now: responses that came, requests not begun, and on pp rank 0
/// what the schedule starts next. Backward comes before forward, a low microbatch before a high
/// one, a begun task before a fresh one, so the choice is a fixed function of what is there.
/// A backward that nobody waits for gives way to what other ranks wait for: requests, answers in a
/// forward (which leads on to the next rank or to the loss), starts of backwards, and backwards
/// that another rank waits for. Under an order of replicas it does not, since the tasks may hold
/// collectives.
/// With a BufferOrder, parts of a forward also wait for those of earlier microbatches that change
/// the same buffers.
class DynamicTurns : public TurnSource {
 public:
  explicit DynamicTurns(const StepResources& resources);

  std::optional<Choice> next() override;
  std::optional<Choice> awaited() override;
  bool done() const override {
    return tasks_.root_done();
  }
  void take(const Fields& fields) override;
  bool turn_ended(const Task& task) override;
  void forward_ended(int microbatch) override;
  void completed() override;

 protected:
  /// Returns the tasks whose response has come and those that have not begun.
  std::vector<Choice> arrived() const;
  /// Adds the start of a microbatch's step function or, when it is suspended, its backward.
  void add_root(int microbatch, std::vector<Choice>& choices) const;
  static void sort(std::vector<Choice>& choices);

  const ServerContext& context_;
  const StepTasks& tasks_;
  const std::int64_t serial_;

 private:
  std::optional<Choice> best(std::vector<Choice> choices) const;
  void add_scheduled(std::vector<Choice>& choices) const;
  bool may_start(const Choice& choice) const;

  BufferOrder* buffer_order_; // nullptr: buffers change in any order
};

} // namespace tessera::runtime
