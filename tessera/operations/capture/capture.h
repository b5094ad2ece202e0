#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/operations/capture/program.h"

namespace tessera::operations {

/// The variables of a model by their tensors, and the names of its modules.
struct VariableTable {
  std::vector<ModelVariable> list;
  std::unordered_map<const c10::TensorImpl*, int> index;
  std::unordered_map<const torch::nn::Module*, std::string> modules;
};

/// How messages about what cannot be recorded end.
inline constexpr const char* kOtherMode =
    "; write \"partition_mode\": \"modules\", in which modules run as they are";

/// Returns every parameter and buffer of the model once. Modules that share one count as one
/// module.
VariableTable variables_of(torch::nn::Module& root);

/// Throws: ConfigError naming the module when it is to be recomputed, always or in the call that
/// comes.
void refuse_recomputed(const torch::nn::Module& module, const std::string& name);

/// Sees the operators of one forward without running them: it is given tensors that have shapes
/// only, so neither the parameters' numbers are needed nor any memory. Without a program it records
/// one; with one it checks that the forward calls the same operators on the same values.
///
/// What cannot be recorded is a UserError that names the operator, its position and module: one
/// that reads numbers (item, nonzero), a change in place of an argument of the model or of a
/// parameter, an autograd function in C++, a hook on a tensor, autocast.
///
/// The scopes of operation_scopes.h that are open at a call are recorded and compared with it.
///
/// Operators on tensors that do not depend on the model's arguments, parameters or random numbers
/// and were not made by a recorded operator run at once; their results are given to the program.
/// Threads: the thread that runs the forward, one at a time in it. Not collective.
class Capture : public DispatchMode {
 public:
  /// Both outlive this; `program` nullptr: record.
  Capture(const VariableTable& variables, const Program* program);

  /// Runs `forward` on shape tensors of the packed arguments.
  /// Throws: what it throws; UserError as above.
  void run(
      const c10::IValue& arguments,
      const std::function<c10::IValue(const c10::IValue&)>& forward);

  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

  /// Returns what was recorded. Only for a capture that did not begin with a program.
  Program take_program() {
    return std::move(recorded_);
  }
  /// By value: the real tensor of what is given to the program (arguments, and what the forward
  /// brought with it); undefined for all others.
  const std::vector<at::Tensor>& given() const {
    return given_;
  }
  /// Returns what the forward returned, its tensors replaced by those of their values.
  c10::IValue result(const std::function<at::Tensor(int)>& tensor_of) const;

 private:
  class Modules;

  bool recording() const {
    return expected_ == nullptr;
  }
  bool runs_at_once(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) const;
  int number_of(const at::Tensor& tensor);
  int add(at::Tensor tensor, ProgramValue value, at::Tensor real);
  void check_value(const at::Tensor& tensor, const ProgramValue& value) const;
  int add_result(const at::Tensor& like, int memory);
  void check_change(const Call& call, int value) const;
  void renew(Call& call, const c10::OperatorHandle& op, std::unordered_map<int, int>& renewed);
  int shared_memory(
      const Call& call,
      const c10::OperatorHandle& op,
      std::size_t result,
      const at::Tensor& tensor,
      int same);
  void record(Call call, const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void repeat(const Call& call, const c10::OperatorHandle& op, torch::jit::Stack* stack);
  torch::jit::Stack run_on_shapes(
      const c10::OperatorHandle& op,
      const Call& call,
      std::unordered_map<const c10::TensorImpl*, int>& value_of);
  void check_difference(const Call& call) const;
  void check_scopes(const Call& call) const;
  void check_length() const;
  void check_autograd() const;
  void check_given() const;
  [[noreturn]] void refuse(const std::string& op, const std::string& why) const;
  std::string here(const std::string& op) const;

  const VariableTable& variables_;
  const Program* expected_;
  Program recorded_;
  std::size_t calls_ = 0;
  bool grad_mode_ = false;
  std::unordered_map<const c10::TensorImpl*, int> numbers_;
  std::vector<at::Tensor> tensors_; // by value: shape tensor, variable, or the real one
  std::vector<at::Tensor> shapes_; // by value, on meta; while recording
  std::vector<at::Tensor> given_;
  std::vector<std::int64_t> versions_; // of given_ when it was first used; -1: none
  std::vector<std::string> path_; // of modules that run
  std::vector<bool> leaf_; // whether each has no modules inside
  c10::IValue returned_;
};

} // namespace tessera::operations
