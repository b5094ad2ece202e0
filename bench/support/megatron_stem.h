#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/comm/process_group.h"

/// Transformer layers divided in one dimension, as the paper's baseline: the
/// first matrix of a pair by columns, the second by rows, activations whole on
/// every rank, two all-reduces a layer each way, activation checkpointing with
/// each rank keeping 1 / p of a layer's input.
/// Source: Shoeybi et al. 2019, section 3; Xu et al. 2021, sections 2.2, 3.1.1.
namespace tessera::bench {

class MegatronStem {
 public:
  /// `heads` and the inner width 4 `hidden` must be multiples of the ranks.
  MegatronStem(comm::ProcessGroup& group, int layers, std::int64_t hidden, std::int64_t heads)
      : group_(group), hidden_(hidden), heads_(heads) {
    const auto p = static_cast<std::int64_t>(group.size());
    const auto parameter = [](at::IntArrayRef sizes) {
      return (torch::randn(sizes) * 0.02).requires_grad_();
    };
    for (int i = 0; i < layers; ++i) {
      layers_.push_back(
          {parameter({hidden}),
           parameter({hidden}),
           parameter({hidden, 3 * hidden / p}),
           parameter({3 * hidden / p}),
           parameter({hidden / p, hidden}),
           parameter({hidden}),
           parameter({hidden}),
           parameter({hidden}),
           parameter({hidden, 4 * hidden / p}),
           parameter({4 * hidden / p}),
           parameter({4 * hidden / p, hidden}),
           parameter({hidden})});
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    const torch::NoGradGuard no_grad;
    inputs_.clear();
    at::Tensor activation = x;
    for (const Layer& layer : layers_) {
      inputs_.push_back(part_of(activation));
      activation = run(layer, activation);
    }
    sizes_ = x.sizes().vec();
    return activation;
  }

  /// Gradients of parameters are added to `grad`.
  at::Tensor backward(at::Tensor gradient) {
    for (std::size_t i = layers_.size(); i-- > 0;) {
      const at::Tensor input = whole_of(inputs_[i]).requires_grad_();
      inputs_[i] = at::Tensor();
      const at::AutoGradMode grad(true);
      run(layers_[i], input).backward(gradient);
      gradient = input.grad();
    }
    return gradient;
  }

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all;
    for (const Layer& layer : layers_) {
      all.insert(all.end(), layer.begin(), layer.end());
    }
    return all;
  }

 private:
  // Norm 1 (2), query-key-value (2), projection (2), norm 2 (2), inner (2),
  // output (2): weight and bias each.
  using Layer = std::vector<at::Tensor>;

  /// Sum over the ranks; the gradient passes.
  struct Sum : torch::autograd::Function<Sum> {
    static at::Tensor
    forward(torch::autograd::AutogradContext*, const at::Tensor& x, std::int64_t group) {
      at::Tensor sum = x.contiguous().clone();
      reinterpret_cast<comm::ProcessGroup*>(group)->all_reduce(sum);
      return sum;
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext*,
        torch::autograd::variable_list gradients) {
      return {gradients[0], at::Tensor()};
    }
  };
  /// The tensor itself; the gradients are added.
  struct Share : torch::autograd::Function<Share> {
    static at::Tensor
    forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, std::int64_t group) {
      ctx->saved_data["group"] = group;
      return x.view_as(x);
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext* ctx,
        torch::autograd::variable_list gradients) {
      at::Tensor sum = gradients[0].contiguous().clone();
      reinterpret_cast<comm::ProcessGroup*>(ctx->saved_data["group"].toInt())->all_reduce(sum);
      return {sum, at::Tensor()};
    }
  };

  at::Tensor run(const Layer& w, const at::Tensor& x) {
    const auto key = reinterpret_cast<std::int64_t>(&group_);
    const at::Tensor a = Share::apply(at::layer_norm(x, {hidden_}, w[0], w[1]), key);
    const at::Tensor y =
        x + Sum::apply(at::matmul(attend(at::matmul(a, w[2]) + w[3]), w[4]), key) + w[5];
    const at::Tensor b = Share::apply(at::layer_norm(y, {hidden_}, w[6], w[7]), key);
    const at::Tensor inner = at::gelu(at::matmul(b, w[8]) + w[9], "tanh");
    return y + Sum::apply(at::matmul(inner, w[10]), key) + w[11];
  }

  at::Tensor attend(const at::Tensor& qkv) const {
    const auto b = qkv.size(0);
    const auto s = qkv.size(1);
    const auto heads = heads_ / group_.size();
    const auto width = hidden_ / heads_;
    const auto parts = qkv.view({b, s, 3, heads, width})
                           .permute({2, 0, 3, 1, 4})
                           .reshape({3, b * heads, s, width})
                           .unbind(0);
    const at::Tensor above =
        at::full({s, s}, -std::numeric_limits<double>::infinity(), qkv.options()).triu_(1);
    const at::Tensor scores =
        at::bmm(parts[0] / std::sqrt(static_cast<double>(width)), parts[1].transpose(1, 2)) + above;
    return at::bmm(at::softmax(scores, -1), parts[2])
        .view({b, heads, s, width})
        .transpose(1, 2)
        .reshape({b, s, heads * width});
  }

  /// Checkpoints are distributed where the positions divide.
  at::Tensor part_of(const at::Tensor& x) const {
    const at::Tensor flat = x.reshape({-1});
    const auto p = static_cast<std::int64_t>(group_.size());
    if (flat.numel() % p != 0) {
      return flat.clone();
    }
    const auto each = flat.numel() / p;
    return flat.narrow(0, group_.rank() * each, each).clone();
  }
  at::Tensor whole_of(const at::Tensor& part) const {
    at::Tensor whole = torch::empty(sizes_, part.options());
    if (part.numel() == whole.numel()) {
      return whole.copy_(part.view(sizes_));
    }
    group_.all_gather(whole, part);
    return whole;
  }

  comm::ProcessGroup& group_;
  std::int64_t hidden_;
  std::int64_t heads_;
  std::vector<Layer> layers_;
  std::vector<at::Tensor> inputs_;
  std::vector<std::int64_t> sizes_;
};

} // namespace tessera::bench
