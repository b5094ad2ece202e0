#pragma once

#include <torch/torch.h>

#include "tessera/nn/module/containers.h"
#include "tessera/nn/parallel/marking.h"

#include "tests/support/tiny_models.h"

/// A model of which tensor parallelism replaces a part.
namespace tessera::testing {

constexpr int kWords = 23; // sizes that two ranks do not divide
constexpr int kInner = 13;

/// Shares its weight with another module.
struct SharerImpl : torch::nn::Module {
  explicit SharerImpl(torch::Tensor shared)
      : weight(register_parameter("weight", std::move(shared))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::nn::functional::linear(x, weight);
  }
  torch::Tensor weight;
};
TESSERA_MODULE(Sharer);

/// Takes tokens [B, S], gives logits [B, S, kWords].
struct PartlyMarkedImpl : torch::nn::Module {
  PartlyMarkedImpl() {
    {
      const tensor_parallelism marked;
      words = register_module("words", nn::Embedding(kWords, kWidth));
      in = register_module("in", nn::Linear(kWidth, kInner));
      middle = register_module("middle", nn::Sequential(nn::Linear(kInner, kInner), nn::Tanh()));
      // Shares its weight, so it stays although it is marked.
      first = register_module("first", nn::Linear(kInner, kInner));
      const tensor_parallelism not_marked(false);
      plain = register_module("plain", nn::Linear(kInner, kInner));
    }
    second = register_module("second", Sharer(first->weight));
    out = register_module("out", nn::Linear(kInner, kWords));
    set_tensor_parallelism(out);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    auto x = torch::relu(in(words(ids)));
    x = middle(x) + in(words(ids.flip(1))); // modules are called twice
    x = second(torch::tanh(first(x))) + plain(x);
    return out(x);
  }
  nn::Embedding words{nullptr};
  nn::Linear in{nullptr};
  nn::Sequential middle{nullptr};
  nn::Linear first{nullptr}, plain{nullptr};
  Sharer second{nullptr};
  nn::Linear out{nullptr};
};
TESSERA_MODULE(PartlyMarked);

} // namespace tessera::testing
