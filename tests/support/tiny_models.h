#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "tessera/nn/module/containers.h"

/// Small models, each with one thing that pipelines find hard. All take
/// (x [B, 8] f32, y [B, 8] f32) through `loss_of` in the parity tests.
namespace tessera::testing {

constexpr int kWidth = 8;

/// A block that is a node of its own, with layers that are nodes as well.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    a = register_module("a", nn::Linear(kWidth, 2 * kWidth));
    b = register_module("b", nn::Linear(2 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + b(torch::tanh(a(x)));
  }
  nn::Linear a{nullptr}, b{nullptr};
};
TESSERA_MODULE(Block);

/// One module called three times in a forward, once on its own output.
struct ReusedImpl : torch::nn::Module {
  ReusedImpl() {
    first = register_module("first", Block());
    shared = register_module("shared", Block());
    last = register_module("last", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = shared(first(x));
    h = shared(h);
    return last(h + shared(x));
  }
  Block first{nullptr}, shared{nullptr};
  nn::Linear last{nullptr};
};
TESSERA_MODULE(Reused);

/// A projection that can share its weight with another module.
struct ProjectionImpl : torch::nn::Module {
  explicit ProjectionImpl(torch::Tensor tied = {}) {
    weight =
        register_parameter("weight", tied.defined() ? tied : torch::randn({kWidth, kWidth}) * 0.3);
    bias = register_parameter("bias", torch::zeros({kWidth}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::nn::functional::linear(x, weight, bias);
  }
  torch::Tensor weight, bias;
};
TESSERA_MODULE(Projection);

/// Output projection tied to the input projection, blocks in a Sequential.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    in = register_module("in", Projection(torch::Tensor()));
    body = register_module("body", nn::Sequential(Block(), Block(), nn::Tanh(), Block(), Block()));
    out = register_module("out", Projection(in->weight));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(body(in(x)));
  }
  Projection in{nullptr};
  nn::Sequential body{nullptr};
  Projection out{nullptr};
};
TESSERA_MODULE(Tied);

/// `if` and `for` on data.
struct ControlImpl : torch::nn::Module {
  ControlImpl() {
    gate = register_module("gate", nn::Linear(kWidth, kWidth));
    left = register_module("left", Block());
    right = register_module("right", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = gate(x);
    if (x.sum().item<float>() > 0) {
      h = left(h);
    } else {
      h = right(h) + left(x);
    }
    const int rounds = 1 + static_cast<int>(x.abs().max().item<float>() > 2.2);
    for (int i = 0; i < rounds; ++i) {
      h = right(h);
    }
    return h;
  }
  nn::Linear gate{nullptr};
  Block left{nullptr}, right{nullptr};
};
TESSERA_MODULE(Control);

using Bundle = std::map<std::string, std::vector<torch::Tensor>>;

/// Nested inputs and outputs, numbers and booleans among them, an integer
/// tensor, an output without gradient and one that nobody uses.
struct NestedPartImpl : torch::nn::Module {
  NestedPartImpl() {
    a = register_module("a", nn::Linear(kWidth, kWidth));
  }
  std::tuple<Bundle, torch::Tensor, std::optional<torch::Tensor>>
  forward(const Bundle& in, double scale, std::optional<torch::Tensor> extra) {
    Bundle out;
    auto h = torch::tanh(a(in.at("x").at(0))) * scale;
    if (extra) {
      h = h + *extra;
    }
    out["x"] = {h, in.at("x").at(0)};
    out["unused"] = {h * 2};
    return {out, (h > 0).to(torch::kLong), extra ? extra : std::nullopt};
  }
  nn::Linear a{nullptr};
};
TESSERA_MODULE(NestedPart);

struct NestedImpl : torch::nn::Module {
  NestedImpl() {
    p = register_module("p", NestedPart());
    q = register_module("q", NestedPart());
    out = register_module("out", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto [one, mask, none] = p(Bundle{{"x", {x}}}, 0.5, std::optional<torch::Tensor>());
    auto [two, mask2, extra] = q(one, 2.0, std::optional<torch::Tensor>(one.at("x").at(1)));
    return out(two.at("x").at(0) * mask.to(torch::kFloat) + *extra + two.at("x").at(1));
  }
  NestedPart p{nullptr}, q{nullptr};
  nn::Linear out{nullptr};
};
TESSERA_MODULE(Nested);

/// A branch that never runs, one whose output is thrown away, and one that
/// only gets gradients of zero elements.
struct UnusedImpl : torch::nn::Module {
  UnusedImpl() {
    a = register_module("a", Block());
    dead = register_module("dead", Block());
    dropped = register_module("dropped", Block());
    b = register_module("b", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = a(x);
    dropped(h);
    return b(h);
  }
  Block a{nullptr}, dead{nullptr}, dropped{nullptr}, b{nullptr};
};
TESSERA_MODULE(Unused);

} // namespace tessera::testing
