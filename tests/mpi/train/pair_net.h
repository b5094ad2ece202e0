#pragma once

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {

/// Two layers, one for each of two ranks.
struct PairNetImpl : torch::nn::Module {
  PairNetImpl() {
    a = register_module("a", nn::Linear(kWidth, kWidth));
    b = register_module("b", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return b(torch::tanh(a(x)));
  }
  nn::Linear a{nullptr}, b{nullptr};
};
TESSERA_MODULE(PairNet);

} // namespace tessera::testing
