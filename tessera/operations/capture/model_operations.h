#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include "tessera/operations/capture/capture.h"
#include "tessera/operations/capture/program.h"
#include "tessera/operations/capture/replay.h"
#include "tessera/operations/cut.h"
#include "tessera/operations/stages.h"

namespace tessera::operations {

/// A model that is divided by operations: its forward is seen, not run, and the operators that it
/// would call run on the ranks that own what they read. Each kind of call (shapes, types and other
/// arguments, training or evaluation, with or without gradients) is recorded once; later calls of
/// the kind have to call the same operators.
///
/// The ranks of a pipeline have a target each, a module without parameters; a stage of another rank
/// is a call of its target, with all that the runtime does for calls of modules: schedules,
/// autograd, random numbers, errors.
/// Threads: those that run the model's forward; one at a time. Not collective.
class ModelOperations {
 public:
  using Forward = std::function<c10::IValue(const c10::IValue& arguments)>;

  /// `options`: how operations are divided; `timed`: the calls before `place` measure them.
  ModelOperations(
      std::shared_ptr<torch::nn::Module> root,
      std::string name,
      CutOptions options,
      bool timed);
  ~ModelOperations();
  ModelOperations(const ModelOperations&) = delete;
  ModelOperations& operator=(const ModelOperations&) = delete;

  /// Returns the result of the forward for the packed arguments; `forward` calls the script's own
  /// on packed arguments. Before `place` all operators run here.
  c10::IValue call(const c10::IValue& arguments, const Forward& forward);

  /// Divides what the calls so far have recorded: by path, the pp rank of each module that has
  /// parameters or buffers of its own. `placed`: by path, where the script wants a module's own.
  /// Throws: ConfigError when there was no call; PlanError where the script's wishes exclude each
  /// other (`cut`).
  std::map<std::string, int> divide(const std::map<std::string, int>& placed = {});
  /// Returns the decision of `divide` in one line.
  const std::string& summary() const {
    return summary_;
  }

  /// From now on operators run where the model's variables are. `owner_of` and `tensor_of`: pp rank
  /// and tensor of a variable's name. Every rank calls it.
  void place(
      int pp_rank,
      std::function<int(const std::string&)> owner_of,
      std::function<at::Tensor(const std::string&)> tensor_of);
  /// By pp rank, what calls of other ranks are for. They live as long as this.
  const std::vector<std::shared_ptr<torch::nn::Module>>& targets() const {
    return targets_;
  }

 private:
  struct Target;
  struct StagePlan;
  struct Known;

  c10::IValue serve(const c10::IValue& request);
  void check_ranks(const Program& program) const;
  void hold_scopes(Graph& graph) const;
  void remember_scopes(const Graph& graph, const std::vector<int>& part_of_operation);
  void plan(Known& known);
  void run_here(Known& known, std::vector<at::Tensor>& values);
  void run_stages(Known& known, std::vector<at::Tensor>& values);
  std::vector<at::Tensor>
  ask(Known& known, std::size_t stage, const std::vector<at::Tensor>& taken);
  std::string kind_of(const c10::IValue& arguments) const;
  const VariableTable& variables();
  /// Calls visit(path, variable) for every module and each variable that is registered in it.
  void for_each_own_variable(const std::function<void(const std::string&, int)>& visit);
  std::vector<int> placed_variables(const std::map<std::string, int>& placed);

  std::shared_ptr<torch::nn::Module> root_;
  std::string name_;
  CutOptions options_;
  bool timed_;
  std::map<std::string, int> rank_of_scope_; // by Together::name
  int next_number_ = 0;
  std::string summary_;
  std::unique_ptr<VariableTable> variables_;
  std::map<std::string, std::unique_ptr<Known>> known_; // by kind of call
  std::vector<const Program*> recorded_; // before the partition, in their order
  int pp_rank_ = -1; // not placed
  std::function<int(const std::string&)> owner_of_;
  std::function<at::Tensor(const std::string&)> tensor_of_;
  std::vector<std::shared_ptr<torch::nn::Module>> targets_;
  std::map<std::pair<int, int>, std::unique_ptr<Replay>> served_; // by program and stage
};

} // namespace tessera::operations
