// A module of the script's own, spread over tensor-parallel ranks: its
// distributed form is written with the library's primitives and registered, the
// script marks the module, and training goes on as if nothing had happened. Run
// on 2 ranks; with 1 rank it prints the same losses.
#include <cstdio>
#include <tuple>

#include <torch/torch.h>

#include "tessera/tessera.h"

// A gated unit: y = (x U * sigmoid(x G)) D.
struct GatedUnitImpl : torch::nn::Module {
  GatedUnitImpl(int width, int inner) : width(width), inner(inner) {
    up = register_parameter("up", torch::randn({width, inner}) * 0.1);
    gate = register_parameter("gate", torch::randn({width, inner}) * 0.1);
    down = register_parameter("down", torch::randn({inner, width}) * 0.1);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::matmul(torch::matmul(x, up) * torch::sigmoid(torch::matmul(x, gate)), down);
  }
  int width, inner;
  torch::Tensor up, gate, down;
};
TESSERA_MODULE(GatedUnit);

// The same over a tensor-parallel group: every rank has some of the inner
// features, for the samples of all ranks, and their partial results are summed.
struct DistributedGatedUnitImpl : tessera::nn::DistributedModule {
  DistributedGatedUnitImpl(int width, int inner) {
    const auto create = tessera::nn::parameter_creation_scope(*this);
    // Stored [out, in] here: the state hooks below turn them.
    up = create.initialize_with_output_partition("up", {inner, width});
    gate = create.initialize_with_output_partition("gate", {inner, width});
    down = create.initialize_with_input_partition("down", {width, inner});
  }
  torch::Tensor forward(const torch::Tensor& x) {
    // Shapes: x_bI -> all_BI -> hidden_Bf -> part_BI -> y_bI.
    const auto all = tessera::nn::fused_allgather_for_tp(x, 0);
    const auto hidden = torch::matmul(all, up.t()) * torch::sigmoid(torch::matmul(all, gate.t()));
    const auto part = torch::matmul(hidden, down.t());
    return tessera::nn::reduce_scatter_for_tp(part, 0);
  }
  torch::Tensor up, gate, down;
};
TESSERA_MODULE(DistributedGatedUnit);

tessera::nn::StateMap turned(const tessera::nn::StateMap& state) {
  tessera::nn::StateMap result;
  for (const auto& [name, tensor] : state) {
    result[name] = tensor.t();
  }
  return result;
}

// What a class decorator does in Python.
TESSERA_TP_REGISTER(GatedUnit, DistributedGatedUnit)
    .init([](const GatedUnitImpl& unit) { return std::make_tuple(unit.width, unit.inner); })
    .state(turned, turned);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    in = register_module("in", tessera::nn::Linear(8, 16));
    {
      const tessera::tensor_parallelism marked;
      unit = register_module("unit", GatedUnit(16, 64));
    }
    out = register_module("out", tessera::nn::Linear(16, 8));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(in(x));
    return out(x + unit(x));
  }
  tessera::nn::Linear in{nullptr};
  GatedUnit unit{nullptr};
  tessera::nn::Linear out{nullptr};
};
TESSERA_MODULE(Net);

int main(int argc, char** argv) {
  tessera::Config config;
  config.tensor_parallel_degree = argc > 1 ? std::atoi(argv[1]) : 2;
  config.ddp = config.tensor_parallel_degree > 1;
  tessera::init(config);
  torch::manual_seed(1);
  tessera::DistributedModel model(Net{});
  tessera::DistributedOptimizer optimizer(
      torch::optim::Adam(model.parameters(), torch::optim::AdamOptions(0.01)));

  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = torch::mse_loss(model(x), x.flip(1)); // learns to reverse
    model.backward(loss);
    return loss;
  });
  for (int i = 1; i <= 100; ++i) {
    const auto batch = torch::randn({32, 8}); // the same on every rank
    const auto mine = batch.chunk(tessera::data_size(), 0)[tessera::data_rank()];
    optimizer.zero_grad();
    double loss = 0;
    for (const double each : tessera::allgather(train_step(mine).reduce_mean().item<double>())) {
      loss += each / tessera::size();
    }
    optimizer.step();
    if (tessera::rank() == 0 && i % 20 == 0) {
      std::printf("step %d loss %.3f\n", i, loss);
    }
  }
  // The state of the script's own module, whoever holds which part.
  const auto state = model.state_dict();
  if (tessera::rank() == 0) {
    std::fprintf(
        stderr,
        "unit.up of the whole model: %ld x %ld; on this rank %ld elements\n",
        static_cast<long>(state.at("unit.up").size(0)),
        static_cast<long>(state.at("unit.up").size(1)),
        static_cast<long>(model.local_state_dict().at("unit.up").numel()));
  }
}
