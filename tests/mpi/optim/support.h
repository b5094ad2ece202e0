#pragma once

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tessera/nn/parallel/marking.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {

/// Four layers for up to four pipeline ranks; tensor parallelism divides two.
struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    a = register_module("a", nn::Linear(kWidth, kWidth));
    {
      const tensor_parallelism marked;
      b = register_module("b", nn::Linear(kWidth, 2 * kWidth));
      c = register_module("c", nn::Linear(2 * kWidth, kWidth));
    }
    d = register_module("d", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return d(torch::tanh(c(torch::tanh(b(torch::tanh(a(x)))))));
  }
  nn::Linear a{nullptr}, b{nullptr}, c{nullptr}, d{nullptr};
};
TESSERA_MODULE(Chain);

inline Chain made(int seed, at::ScalarType type = at::kFloat) {
  torch::manual_seed(seed);
  Chain chain;
  chain->to(type);
  return chain;
}

struct Layout {
  int pp = 1;
  int tp = 1;
  std::string text() const {
    return str("pp ", pp, ", tp ", tp, ", dp ", world_size() / pp);
  }
};

constexpr int kMicrobatches = 2;

inline Config config_of(const Layout& layout) {
  const int pp = layout.pp;
  Config config = placed(pp, kMicrobatches, {{"b", 1 % pp}, {"c", pp / 2}, {"d", pp - 1}});
  config.tensor_parallel_degree = layout.tp;
  return config;
}

inline std::vector<Layout> layouts() {
  switch (world_size()) {
    case 1:
      return {{1, 1}};
    case 2:
      return {{1, 1}, {2, 1}, {1, 2}};
    default:
      return {{2, 1}, {4, 1}, {2, 2}};
  }
}

inline Batch batch_of(at::ScalarType type = at::kFloat) {
  const Batch batch = random_batches(16)(0);
  return {batch.x.to(type), batch.y.to(type)};
}

/// How many parts the world's batch is divided into.
inline int slices_of_world() {
  return kMicrobatches * dp_size();
}

inline TensorMap state_of(const Chain& chain) {
  TensorMap state;
  for (const auto& item : chain->named_parameters()) {
    state[item.key()] = item.value().detach().clone();
  }
  return state;
}

inline void expect_state(
    const TensorMap& got,
    const TensorMap& wanted,
    const std::string& what,
    double tolerance = 1e-5) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << what << ", " << name;
    EXPECT_LE(relative_error(got.at(name), tensor), tolerance) << what << ", " << name;
  }
}

inline auto step_of(const DistributedModel<Chain>& model) {
  return tessera::step([&model](torch::Tensor x, torch::Tensor y) {
    auto loss = (model(x) - y).pow(2).mean(); // also in 16 bits
    model.backward(loss);
    return loss;
  });
}

} // namespace tessera::testing
