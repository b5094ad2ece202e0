#pragma once

#include <utility>
#include <vector>

#include <torch/optim/adamw.h>

#include "tessera/optim/lamb.h"
#include "tessera/optim/novograd.h"

namespace tessera::optim {

using FusedLamb = Lamb;
using FusedNovoGrad = NovoGrad;

/// torch's AdamWOptions with the documentation's default for the decay of weights, which is none.
struct FusedAdamOptions : torch::optim::AdamWOptions {
  explicit FusedAdamOptions(double lr = 1e-3) : AdamWOptions(lr) {
    weight_decay(0);
  }
};

/// torch's AdamW with that default: `FusedAdam(parameters, FusedAdamOptions(3e-4))`. Options of
/// torch's own type, AdamWOptions, decay weights by 0.01 unless they say otherwise.
/// Threads: step thread only.
class FusedAdam : public torch::optim::AdamW {
 public:
  explicit FusedAdam(
      std::vector<at::Tensor> parameters,
      const torch::optim::AdamWOptions& options = FusedAdamOptions())
      : AdamW(std::move(parameters), options) {}
  FusedAdam(std::vector<at::Tensor> parameters, double lr)
      : FusedAdam(std::move(parameters), FusedAdamOptions(lr)) {}
};

} // namespace tessera::optim
