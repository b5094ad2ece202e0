#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/optim/loss_scaler.h"

namespace tessera::equivalence {

enum class OptimizerKind {
  kMomentum,
  kPlain,
  kNesterov,
  kAdam,
  kAmsgrad,
  kAdamW,
  kLamb,
  kNovoGrad
};

enum class Zeroing {
  kNone, // gradients become undefined
  kZeros,
  kOfModel, // the model's zero_grad
  kKept, // gradients of the last step stay, and those of this one are added
};

/// What a script does around one optimizer step.
struct Around {
  Zeroing zeroing = Zeroing::kNone;
  bool zeroes_after = false; // the update, not before the next backward
  bool evaluates = false; // a step without backward before the training step
  double rate = 1; // times the learning rate
  int frozen = -1; // parameters of this kind (see `kind_of`); -1: none
};

/// What a script does, whatever the layout.
struct Course {
  OptimizerKind optimizer = OptimizerKind::kMomentum;
  double most_norm = 1; // LAMB's max_grad_norm
  bool two_groups = false; // of parameters, by `kind_of`
  std::optional<double> clip; // L2 norm
  bool asks_norm = false; // without clipping
  bool drops = false; // some operations are dropout, the same in every layout
  at::ScalarType type = at::kFloat;
  optim::LossScaleOptions loss_scale; // with f16
  std::vector<Around> steps; // around each optimizer step
};

/// Parameters are told apart by their names: 0, 1 or 2.
int kind_of(const std::string& parameter);

/// Names and tensors -> groups of the optimizer.
using Named = std::vector<std::pair<std::string, at::Tensor>>;
/// `plain`: one process's own, where the library has the optimizer that it is to be.
std::unique_ptr<torch::optim::Optimizer>
make_optimizer(const Course& course, const Named& named, bool plain);

/// Sets the rate of every group to `factor` times what it was made with.
void set_rate(torch::optim::Optimizer& optimizer, const Course& course, double factor);

std::string to_text(const Course& course);

} // namespace tessera::equivalence
