#pragma once

#include <mpi.h>

#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/parallel/primitives.h"
#include "tessera/nn/replace/replace.h"

#include "tests/support/parity.h"
#include "tests/support/tensor_parallel.h"

namespace tessera::testing {

inline int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

inline Config tp_config(int pp, int tp, bool prescaled = false) {
  Config config;
  config.pipeline_parallel_degree = pp;
  config.tensor_parallel_degree = tp;
  config.prescaled_batch = prescaled;
  config.ddp = world_size() > pp;
  config.microbatches = 2;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 4 << 20;
  return config;
}

/// A module that the library has never seen: y = (times x U * sigmoid(times x
/// G)) D, weights stored [in, out]; returns a list.
struct GatedImpl : torch::nn::Module {
  GatedImpl(std::int64_t width, std::int64_t inner)
      : up_gate(register_parameter("up_gate", torch::randn({width, 2 * inner}) * 0.3)),
        down(register_parameter("down", torch::randn({inner, width}) * 0.3)) {}
  std::vector<torch::Tensor> forward(const torch::Tensor& x, double times) {
    const auto parts = torch::matmul(x * times, up_gate).chunk(2, -1);
    return {torch::matmul(parts[0] * torch::sigmoid(parts[1]), down)};
  }
  torch::Tensor up_gate, down;
};
TESSERA_MODULE(Gated);

/// The same over the TP_GROUP, of the library's primitives: inner features are
/// divided; weights are stored [out, in], and apart.
struct DistributedGatedImpl : nn::DistributedModule {
  DistributedGatedImpl(std::int64_t width, std::int64_t inner) {
    const auto create = nn::parameter_creation_scope(*this);
    up = create.initialize_with_output_partition("up", {inner, width});
    gate = create.initialize_with_output_partition("gate", {inner, width});
    down = create.initialize_with_input_partition("down", {width, inner});
  }
  torch::Tensor forward(const torch::Tensor& own) {
    const bool prescaled = parallel().prescaled_batch;
    const auto x = prescaled ? nn::bwd_allreduce_for_tp(own) : nn::fused_allgather_for_tp(own, 0);
    const auto inner = torch::matmul(x, up.t()) * torch::sigmoid(torch::matmul(x, gate.t()));
    const auto part = torch::matmul(inner, down.t());
    return prescaled ? nn::fwd_allreduce_for_tp(part) : nn::reduce_scatter_for_tp(part, 0);
  }
  torch::Tensor up, gate, down;
};
TESSERA_MODULE(DistributedGated);

inline nn::StateMap gated_to_distributed(const nn::StateMap& state) {
  const auto parts = state.at("up_gate").t().chunk(2, 0);
  return {{"up", parts[0]}, {"gate", parts[1]}, {"down", state.at("down").t()}};
}
inline nn::StateMap gated_to_original(const nn::StateMap& state) {
  return {
      {"up_gate", torch::cat({state.at("up"), state.at("gate")}).t()},
      {"down", state.at("down").t()}};
}

TESSERA_TP_REGISTER(Gated, DistributedGated)
    .init([](const GatedImpl& gated) {
      return std::make_tuple(gated.down.size(1), gated.down.size(0));
    })
    .forward([](const torch::Tensor& x, double times) { return x * times; })
    .returns([](const torch::Tensor& y) { return std::vector{y}; })
    .state(gated_to_distributed, gated_to_original);

/// Everything at once: a custom module, built-in ones, plain ones. Takes tokens
/// [B, S], gives logits [B, S, kWords].
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    const tensor_parallelism marked;
    words = register_module("words", nn::Embedding(kWords, kWidth));
    gated = register_module("gated", Gated(kWidth, kInner));
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    last = register_module("last", nn::Linear(kWidth, kWords));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    const auto x = words(ids);
    return last(norm(x + gated(x, 0.7).at(0)));
  }
  nn::Embedding words{nullptr};
  Gated gated{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear last{nullptr};
};
TESSERA_MODULE(Mixed);

inline Batch word_batch(int step) {
  torch::manual_seed(700 + step);
  return {torch::randint(0, kWords, {16, 5}), torch::randint(0, kWords, {16, 5})};
}

inline torch::Tensor word_loss(const torch::Tensor& logits, const torch::Tensor& y) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), y.flatten());
}

inline DistributedOptimizer adam(const std::vector<torch::Tensor>& parameters) {
  return DistributedOptimizer(torch::optim::Adam(parameters, torch::optim::AdamOptions(0.01)));
}

template <typename Model>
auto word_step(const Model& model) {
  return tessera::step([&model](torch::Tensor x, torch::Tensor y) {
    auto loss = word_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
}

inline Batch mine_of(const Batch& batch) {
  return part_of(batch, data_size(), data_rank());
}

template <typename Error, typename Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Parameters and buffers as a single process has them.
template <typename Net>
TensorMap plain_state(const Net& net) {
  TensorMap state;
  for (const auto& [name, tensor] : nn::named_state(*net)) {
    state.emplace(name, tensor.detach().clone());
  }
  return state;
}

inline void expect_same_bits(const TensorMap& got, const TensorMap& wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_TRUE(got.at(name).equal(tensor)) << name;
  }
}

} // namespace tessera::testing
