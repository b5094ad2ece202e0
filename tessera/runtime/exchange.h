#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/runtime/flow.h"
#include "tessera/runtime/message.h"
#include "tessera/transport/transport.h"

namespace tessera::runtime {

class ScriptStream;
class Server;
struct Task;

/// What one leg of a remote call carries: arguments, a result, or the gradients
/// of either (a tuple of tensors and None).
struct Content {
  c10::IValue value;
  /// Which tensors of arguments or a result need gradients ('1' or '0' each, in
  /// for_each_tensor order); empty for gradients.
  std::string needs_grad;
};

/// How the legs of remote calls travel in a step. `fields` name the call, and
/// by their phase the leg.
/// Not collective. Threads: whoever holds the baton.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Caller: sends arguments or output gradients to the owner (a pp rank).
  virtual void request(Task& task, const Fields& fields, int owner, Content content) = 0;
  /// Caller: the answer; suspends the task until it is there.
  virtual Content response(Task& task, const Fields& fields, int owner) = 0;
  /// Owner: what the task was asked with.
  virtual Content arguments(Task& task) = 0;
  /// Owner: sends result or input gradients.
  virtual void respond(Task& task, Content content) = 0;

  /// What user code gets for a received value, once that hangs in the graph.
  virtual c10::IValue hand_over(const LegId& leg, c10::IValue value) {
    (void)leg;
    return value;
  }
  /// What user code gives the library to read: results of the step function,
  /// losses.
  virtual c10::IValue read(c10::IValue value) {
    return value;
  }
  /// Sees the operators of user code; nullptr: nobody does.
  virtual DispatchMode* watcher() {
    return nullptr;
  }
};

/// Requests and responses: the owner knows nothing before a request comes.
class DynamicExchange : public Exchange {
 public:
  /// Both outlive it. `pp_ranks`: global rank of each pp rank.
  DynamicExchange(
      Server& server,
      transport::Transport& transport,
      const std::vector<int>& pp_ranks);

  void request(Task& task, const Fields& fields, int owner, Content content) override;
  Content response(Task& task, const Fields& fields, int owner) override;
  Content arguments(Task& task) override;
  void respond(Task& task, Content content) override;

  /// Messages carry this stream of random numbers; nullptr: none. Until the next call.
  void carry(ScriptStream* stream) {
    stream_ = stream;
  }

 private:
  c10::IValue body_for(int rank, const Content& content);
  Content content_of(int rank, const c10::IValue& body);

  Server& server_;
  transport::Transport& transport_;
  const std::vector<int>& pp_ranks_;
  ScriptStream* stream_ = nullptr;
};

/// The legs of a call in the phase of its fields.
inline LegId request_leg(const Fields& fields) {
  return {fields.call, fields.phase == Phase::kForward ? Leg::kArguments : Leg::kOutputGradients};
}
inline LegId response_leg(const Fields& fields) {
  return {fields.call, fields.phase == Phase::kForward ? Leg::kResults : Leg::kInputGradients};
}

} // namespace tessera::runtime
