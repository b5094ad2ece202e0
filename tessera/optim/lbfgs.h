#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/optim/lbfgs.h>

namespace tessera::comm {
enum class ReduceOp;
} // namespace tessera::comm

namespace tessera::optim {

/// How one rank's part of a model makes numbers over the whole model.
struct WholeModel {
  /// Combines each number over all ranks that hold different parameters. The
  /// result is the same, to the bit, on every rank of the world, because it
  /// decides how often the model is evaluated. Collective over the world.
  std::function<std::vector<double>(const std::vector<double>&, comm::ReduceOp)> reduce;
  /// The parts of `tensor`, which has the shape of `parameter`, that no other
  /// rank counts. Not collective.
  std::function<std::vector<at::Tensor>(const at::Tensor& parameter, const at::Tensor& tensor)>
      counted;

  /// A model of which this process holds everything.
  static WholeModel of_one_process();
};

/// torch::optim::LBFGSOptions, with torch's names and defaults, as a type that
/// tells checkpoints whose state this is.
struct LBFGSOptions : torch::optim::LBFGSOptions {
  explicit LBFGSOptions(double lr = 1) : torch::optim::LBFGSOptions(lr) {}
  LBFGSOptions(const torch::optim::LBFGSOptions& options) // NOLINT: torch's options as they are
      : torch::optim::LBFGSOptions(options) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<LBFGSOptions>(*this);
  }
};

/// What LBFGS keeps for each parameter, so that the state can be divided over
/// ranks in any way. Tensors have the parameter's shape; the numbers are the
/// same for all parameters.
struct LBFGSParamState : torch::optim::OptimizerCloneableParamState<LBFGSParamState> {
  std::int64_t n_iter = 0;
  std::int64_t func_evals = 0;
  double t = 0; // last step length
  double h_diag = 1; // scale of the first inverse Hessian
  at::Tensor d; // last direction
  at::Tensor prev_grad;
  std::deque<at::Tensor> old_dirs; // differences of gradients, oldest first
  std::deque<at::Tensor> old_stps; // differences of parameters
  std::deque<double> ro; // one over their product
};

/// Limited-memory BFGS with the formulas of torch::optim::LBFGS, for a model
/// whose parameters are on several ranks: every number that decides is computed
/// over the whole model and is the same on all ranks, so all of them evaluate
/// the closure equally often. One process gets torch's results to rounding
/// (products are summed in f64).
///
/// It runs inside a DistributedOptimizer, which also takes a
/// torch::optim::LBFGS and makes it one of these.
/// Threads: step thread only.
/// Source: Nocedal and Wright 2006, algorithm 7.5; torch.optim.LBFGS.
class LBFGS : public torch::optim::Optimizer {
 public:
  /// Throws: ConfigError for a line search other than "strong_wolfe", or a
  /// max_iter or history_size below 1.
  explicit LBFGS(std::vector<at::Tensor> parameters, const LBFGSOptions& options = LBFGSOptions());

  /// Up to max_iter iterations; returns the closure's loss before the first.
  /// The closure computes loss and gradients of the whole model at the
  /// parameters' present values. An error of the closure leaves the optimizer's
  /// state as it was, and the parameters where they were evaluated.
  /// Collective over the world.
  /// Throws: UserError without a closure, or outside a DistributedOptimizer.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Says over which ranks the next steps compute; nullopt: none, and step
  /// throws. Not collective.
  void compute_over(std::optional<WholeModel> model) {
    model_ = std::move(model);
  }

 private:
  std::optional<WholeModel> model_;
};

} // namespace tessera::optim
