#pragma once

#include <string>

#include "tessera/optim/optimizer_access.h"

#include "tests/mpi/optim/support.h"

namespace tessera::testing {

constexpr int kUpdates = 4;
constexpr double kRate = 1;
constexpr double kRounding = 4e-3; // of f16 numbers that were added in another order

inline Config fp16_config(const Layout& layout) {
  Config config = config_of(layout);
  config.fp16 = true;
  return config;
}

inline torch::optim::SGD momentum_sgd(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(kRate).momentum(0.5));
}

inline const LossScaleOptions kDynamic{
    .dynamic_loss_scale = true,
    .dynamic_loss_args = {.init_scale = 1024, .scale_window = 2}};

struct HalfRun {
  explicit HalfRun(const LossScaleOptions& options = kDynamic)
      : model{made(7)},
        optimizer(momentum_sgd(model.parameters()), options),
        mine(part_of(batch_of(), data_size(), data_rank())),
        step(step_of(model)) {}

  double train() {
    optimizer.zero_grad();
    const double loss = step(mine.x, mine.y).reduce_mean().item<double>();
    optimizer.step();
    return loss;
  }
  TensorMap masters() const {
    TensorMap all;
    for (const auto& [name, tensor] : optim::OptimizerAccess::updated_tensors(optimizer)) {
      all[name] = tensor.detach().clone();
    }
    return all;
  }

  DistributedModel<Chain> model;
  DistributedOptimizer optimizer;
  Batch mine;
  decltype(step_of(std::declval<DistributedModel<Chain>&>())) step;
};

inline void expect_alike(double value, const std::string& what) {
  for (const double other : allgather(value, Group::kWorld)) {
    EXPECT_EQ(other, value) << what;
  }
}

/// What an overflow leaves behind, on every rank.
inline void
expect_left_out(HalfRun& run, const TensorMap& before, double scale, const std::string& what) {
  EXPECT_TRUE(run.optimizer.overflow()) << what;
  EXPECT_EQ(run.optimizer.loss_scale(), scale) << what;
  expect_alike(run.optimizer.loss_scale(), what);
  for (const auto& [name, tensor] : run.masters()) {
    EXPECT_TRUE(tensor.equal(before.at(name))) << what << ", " << name;
  }
  for (const auto& [name, tensor] : run.model.local_parameters()) {
    EXPECT_FALSE(tensor.grad().defined()) << what << ", " << name;
  }
}

} // namespace tessera::testing
