#pragma once

#include <map>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tessera::runtime {

/// The script's stream of random numbers in a step in which one task runs at a
/// time: the generator's state goes with every request and response, so each
/// rank draws where the one before it stopped, as a single process does.
///
/// A state is 2.5 kB; it is left out of a message when it is the one that went
/// between the same two ranks last, so a model that draws nothing sends it once.
/// Not collective. Threads: whoever holds the baton.
class ScriptStream {
 public:
  /// Returns what a message to this global rank carries: the generator's current state, or None for
  /// the state that was sent between the two ranks last.
  c10::IValue for_message_to(int rank);

  /// Sets the generator to the state that a message from this rank carries.
  /// Throws: InternalError for None where no state was sent before.
  void take_from(int rank, const c10::IValue& state);

 private:
  std::map<int, at::Tensor> last_; // bytes by peer
};

} // namespace tessera::runtime
