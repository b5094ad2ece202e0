#pragma once

#include <string>

#include <ATen/core/ivalue.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/runtime/protocol.h"
#include "tessera/runtime/requires_grad_mask.h"
#include "tessera/runtime/shared_memory.h"
#include "tessera/runtime/task.h"

namespace tessera::runtime {

/// What one message of a remote call carries: arguments, a result, or the gradients
/// of either (a tuple of tensors and None).
struct Content {
  c10::IValue value;
  RequiresGradMask requires_grad; // of arguments and results; empty for gradients
  SharedMemory shared = {}; // of results
};

/// How the messages of remote calls travel in a step. `fields` name the call, and
/// by their phase the message.
/// Not collective. Threads: whoever holds the baton.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Caller: sends arguments or output gradients to the owner (a pp rank).
  virtual void request(Task& task, const Fields& fields, int owner, Content content) = 0;
  /// Caller: returns the answer; suspends the task until it is there.
  virtual Content response(Task& task, const Fields& fields, int owner) = 0;
  /// Owner: returns the arguments or gradients of the request.
  virtual Content arguments(Task& task) = 0;
  /// Owner: sends result or input gradients.
  virtual void respond(Task& task, Content content) = 0;
  /// Owner: called when the task failed before it had responded.
  virtual void respond_failure(Task& task, std::string text) = 0;

  /// Returns whether a message of this step belongs to a step of this kind.
  virtual bool accepts(const Fields& fields) const = 0;
  /// Takes a message of kind kPacket that was accepted.
  virtual void take_packet(const Fields& /*fields*/, const c10::IValue& /*body*/) {}
  /// Called when a microbatch is about to wait for the schedule to start its backward.
  /// Throws: UserError when the step does not allow that there.
  virtual void before_schedule(const Task& /*task*/) {}

  /// Returns what user code gets for a received value, once that has its grad_fn.
  virtual c10::IValue hand_over(const MessageId& /*message*/, c10::IValue value) {
    return value;
  }
  /// Returns the tensors behind what user code gives the library: results of the step function,
  /// losses.
  virtual c10::IValue read(c10::IValue value) {
    return value;
  }
  /// Returns the watcher of user code's operators; nullptr when there is none.
  virtual DispatchMode* watcher() {
    return nullptr;
  }
};

} // namespace tessera::runtime
