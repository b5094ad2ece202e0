#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/autograd/gradient_order.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/runtime/remote_backward.h"
#include "tessera/runtime/step_state.h"

namespace tessera::runtime {

/// Both sides of module calls that cross ranks, forward and backward: sends those of this rank's
/// tasks and runs those that other ranks ask for.
/// Not collective. Threads: workers, one at a time.
/// Source: Karakus et al. 2021, section 4.2 and appendix B.
class ModuleCalls : public nn::Interceptor, public BackwardRequester {
 public:
  /// All arguments outlive it. `order` is the order of gradients; with nullptr they are added as
  /// they come.
  ModuleCalls(const ServerContext& context, StepControl& control, GradientOrder* order)
      : context_(context), control_(control), gradient_order_(order) {}

  /// Sets the step that runs from now on; nullptr means none.
  void set_step(StepState* step) {
    step_ = step;
  }

  // nn::Interceptor, for the caller of a module:
  bool wants(const torch::nn::Module& module) override;
  c10::IValue call(
      torch::nn::Module& module,
      const nn::CallKey& key,
      const c10::IValue& args,
      int first,
      int last) override;
  int range_end(const torch::nn::Module& sequential, int first) override;
  int local_end(const torch::nn::Module& sequential, int first) override;
  at::Tensor tensor_named(const torch::nn::Module& module, const std::string& name) override;

  // BackwardRequester, for the caller's autograd graph:
  std::vector<at::Tensor> call_backward(
      const RemoteCall& call,
      const std::vector<at::Tensor>& gradients,
      bool inputs_only) override;
  std::string name_of(int module) const override {
    return context_.modules->name_of(module);
  }

  /// Called from the step function: waits until the schedule starts this microbatch's backward,
  /// then runs it.
  void backward(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& gradients);

  // Called on the owner of a module: runs what the request asks for, and responds.
  void run_forward(Task& task);
  void run_backward(Task& task);

 private:
  Fields fields_of_call(Task& task, const torch::nn::Module& module) const;
  c10::IValue invoke(const Fields& request, const c10::IValue& args);
  void respond_inputs_only(
      Task& task,
      const CallRecord& record,
      const std::vector<at::Tensor>& roots,
      const std::vector<at::Tensor>& gradients);
  void wait_for_schedule(Task& task);

  const ServerContext& context_;
  StepControl& control_;
  GradientOrder* gradient_order_;
  StepState* step_ = nullptr;
};

} // namespace tessera::runtime
