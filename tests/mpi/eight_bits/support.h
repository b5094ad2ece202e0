#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/optim/optimizer_access.h"
#include "tessera/optim/stochastic_rounding.h"

#include "tests/mpi/tensor_parallel/support.h"

/// AdamW8bit under several layouts, beside one process. Gradients are given by hand, equal on all
/// ranks, so that nothing but the update can differ.
namespace tessera::testing {

/// Two matrices of 16384 elements: bytes as one tensor, and as the parts of two or four ranks.
struct WideImpl : torch::nn::Module {
  WideImpl() {
    const tensor_parallelism marked;
    words = register_module("words", nn::Embedding(kWords, kSide));
    in = register_module("in", nn::Linear(kSide, 2 * kSide));
    out = register_module("out", nn::Linear(2 * kSide, kSide));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return out(torch::tanh(in(words(ids))));
  }
  static constexpr int kSide = 96;
  nn::Embedding words{nullptr};
  nn::Linear in{nullptr}, out{nullptr};
};
TESSERA_MODULE(Wide);

/// pp x tp of this world; the rest are replicas.
inline std::vector<std::pair<int, int>> eight_bit_layouts() {
  return world_size() == 2 ? std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 2}}
                           : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {2, 2}, {1, 4}};
}

inline Config eight_bit_config(const std::pair<int, int>& layout, bool rounded, int seed = 3) {
  Config config = tp_config(layout.first, layout.second);
  config.bf16 = rounded;
  config.seed = seed;
  return config;
}

inline optim::AdamW8bitOptions eight_bit_options(bool rounded) {
  return optim::AdamW8bitOptions(0.01).weight_decay(0.1).stochastic_rounding(rounded);
}

/// The values of a new model, in the type that its training has.
template <typename Net>
TensorMap start_of(bool rounded) {
  torch::manual_seed(31);
  TensorMap state = plain_state(Net());
  for (auto& [name, tensor] : state) {
    tensor = tensor.to(rounded ? at::kBFloat16 : at::kFloat);
  }
  return state;
}

inline TensorMap gradients_of(const TensorMap& parameters, int update) {
  torch::manual_seed(500 + update);
  TensorMap gradients;
  for (const auto& [name, tensor] : parameters) {
    gradients.emplace(name, torch::randn(tensor.sizes()).to(tensor.scalar_type()));
  }
  return gradients;
}

/// The same with the plain module, in this process alone.
template <typename Net>
TensorMap updated_alone(bool rounded, int updates, int seed = 3) {
  Net net;
  net->to(rounded ? at::kBFloat16 : at::kFloat);
  const TensorMap start = start_of<Net>(rounded);
  std::map<const void*, optim::StochasticRounding> roundings;
  std::vector<torch::Tensor> parameters;
  for (const auto& item : net->named_parameters()) {
    const torch::NoGradGuard no_grad;
    item.value().copy_(start.at(item.key()));
    parameters.push_back(item.value());
    roundings.try_emplace(
        item.value().unsafeGetTensorImpl(),
        static_cast<std::uint64_t>(seed),
        state::ElementPlaces::identity(item.key(), item.value().numel()));
  }
  optim::AdamW8bit optimizer(parameters, eight_bit_options(rounded));
  optimizer.round_by(
      [&](const at::Tensor& parameter) { return &roundings.at(parameter.unsafeGetTensorImpl()); });
  for (int update = 0; update < updates; ++update) {
    const TensorMap gradients = gradients_of(start, update);
    for (const auto& item : net->named_parameters()) {
      item.value().mutable_grad() = gradients.at(item.key());
    }
    optimizer.step();
  }
  return plain_state(net);
}

/// A model with its optimizer, partitioned. `init` comes first.
template <typename Net>
struct HandFed {
  explicit HandFed(bool rounded)
      : start(start_of<Net>(rounded)),
        model(Net()),
        optimizer(optim::AdamW8bit(model.parameters(), eight_bit_options(rounded))) {
    model.load_state_dict(start);
    auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
    const torch::NoGradGuard no_grad;
    forward(mine_of(word_batch(0)).x);
  }
  void update(int number) {
    const torch::NoGradGuard no_grad;
    const TensorMap before = model.state_dict();
    // Each rank's part of a gradient is what it takes of a state.
    model.load_state_dict(gradients_of(start, number));
    std::vector<torch::Tensor> parts;
    for (const auto& [name, parameter] : model.local_parameters()) {
      parts.push_back(parameter.detach().clone());
    }
    model.load_state_dict(before);
    std::size_t i = 0;
    for (auto& [name, parameter] : model.local_parameters()) {
      torch::Tensor(parameter).mutable_grad() = parts[i++];
    }
    // Its own step would average them, and refuse some that no step made.
    optim::OptimizerAccess::prepare(optimizer);
    optimizer.inner().step();
    optimizer.zero_grad();
  }
  TensorMap start;
  DistributedModel<Net> model;
  DistributedOptimizer optimizer;
};

/// How far `got` is from `wanted`, in units of what the updates moved; the largest of all tensors.
inline double apart(const TensorMap& got, const TensorMap& wanted, const TensorMap& start) {
  double most = 0;
  for (const auto& [name, tensor] : wanted) {
    const auto of = [](const torch::Tensor& value) { return value.to(torch::kDouble); };
    const double moved = (of(tensor) - of(start.at(name))).norm().item<double>();
    most = std::max(most, (of(got.at(name)) - of(tensor)).norm().item<double>() / moved);
  }
  return most;
}

} // namespace tessera::testing
