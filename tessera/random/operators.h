#pragma once

#include <cstdint>
#include <string>

/// Dropout operators of torch, drawn from the stream of the thread that calls them.
namespace tessera::random {

/// From now on, and for the rest of the process, torch's dropout on the processor and on GPUs
/// (torch::dropout, torch::nn::Dropout and every layer of torch that calls them) and its form for
/// whole channels (Dropout2d) draw from the thread's stream where it has one; elsewhere they are
/// torch's own, to the bit. The other forms, alpha dropout, are a UserError then.
/// Harmless to repeat. Not collective. Threads: one at a time, before others run.
///
/// How: kernels of the keys CPU, CUDA and of autograd over them in place of the composite ones.
void take_over_dropout();

/// Tells of random numbers that a task drew from torch's default generator for the CPU, which do
/// depend on the layout: one warning a process. The generator must not stand where another task
/// left it, neither when it begins nor when it ends.
/// Threads: those that run user code.
class OtherNumbersWatch {
 public:
  /// `active` false: it does nothing.
  explicit OtherNumbersWatch(bool active);
  /// Warns when the generator was used meanwhile. `who` names the task: "the step function".
  void finish(const std::string& who) const;

 private:
  bool active_;
  std::uint64_t before_ = 0;
};

} // namespace tessera::random
