#pragma once

#include "tessera/timeline/timeline.h"
#include "tessera/train/step_runner.h"

namespace tessera::train {

/// One pipeline rank: each microbatch runs to its end on the calling thread.
class LocalRunner : public StepRunner {
 public:
  explicit LocalRunner(Context& context) : context_(context) {}

  std::vector<c10::IValue> run(const Work& work) override;
  void backward(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& gradients)
      override;

 private:
  c10::IValue run_microbatch(const Work& work, int microbatch);
  void end_event();

  Context& context_;
  timeline::Event event_; // the running one
};

} // namespace tessera::train
