#pragma once

#include <utility>
#include <vector>

#include <torch/optim/adamw.h>

#include "tessera/optim/lamb.h"
#include "tessera/optim/novograd.h"

namespace tessera::optim {

using FusedLamb = Lamb;
using FusedNovoGrad = NovoGrad;

/// torch's AdamW with the documentation's default for the decay of weights, which is none.
/// Threads: step thread only.
class FusedAdam : public torch::optim::AdamW {
 public:
  explicit FusedAdam(
      std::vector<at::Tensor> parameters,
      const torch::optim::AdamWOptions& options = torch::optim::AdamWOptions().weight_decay(0))
      : AdamW(std::move(parameters), options) {}
};

} // namespace tessera::optim
