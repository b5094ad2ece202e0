#include "models/layers.h"

#include <limits>

#include <torch/torch.h>

#include "tessera/nn/layers/first_keys.h"
#include "tessera/recompute/attentions.h"
#include "tessera/recompute/kept_attention.h"
#include "tessera/recompute/kept_bmm.h"
#include "tessera/recompute/kept_dropout.h"
#include "tessera/recompute/kept_products.h"

namespace tessera::models {

Conv1DImpl::Conv1DImpl(std::int64_t in, std::int64_t out, double standard_deviation) {
  weight = register_parameter("weight", torch::empty({in, out}).normal_(0, standard_deviation));
  bias = register_parameter("bias", torch::zeros({out}));
}

at::Tensor Conv1DImpl::forward(const at::Tensor& x) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(1);
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  if (const at::Tensor given = recompute::given_product(); given.defined()) {
    const at::Tensor product =
        recompute::kept_linear(given.reshape({-1, shape.back()}), rows, weight, bias);
    return at::_unsafe_view(product, shape);
  }
  // The bias is added inside the product, without another pass.
  const at::Tensor y = at::_unsafe_view(at::addmm(bias, rows, weight), shape);
  recompute::keep_product(y);
  return y;
}

TiedLinearImpl::TiedLinearImpl(at::Tensor shared)
    : weight(register_parameter("weight", std::move(shared))) {}

at::Tensor TiedLinearImpl::forward(const at::Tensor& x) {
  return at::linear(x, weight);
}

Embedding
make_embedding(std::int64_t rows, std::int64_t width, double deviation, std::int64_t padding_row) {
  auto weight = torch::empty({rows, width}).normal_(0, deviation);
  torch::nn::EmbeddingOptions options(rows, width);
  if (padding_row >= 0) {
    weight.select(0, padding_row).zero_();
    options.padding_idx(padding_row);
  }
  return Embedding(options._weight(std::move(weight)));
}

Linear make_linear(std::int64_t in, std::int64_t out, double deviation, bool bias) {
  Linear linear(torch::nn::LinearOptions(in, out).bias(bias));
  const torch::NoGradGuard no_grad;
  linear->weight.normal_(0, deviation);
  if (bias) {
    linear->bias.zero_();
  }
  return linear;
}

at::Tensor split_heads(const at::Tensor& x, std::int64_t heads) {
  const auto batch = x.size(0);
  const auto positions = x.size(1);
  const auto width = x.size(2) / heads;
  return x.view({batch, positions, heads, width})
      .transpose(1, 2)
      .reshape({batch * heads, positions, width});
}

namespace {

/// The context of a region that keeps products.
at::Tensor attend_some_heads_at_a_time(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& bias,
    std::int64_t heads,
    double dropout) {
  recompute::HeadRule rule{q.size(0) / heads, heads, {}, {}};
  if (nn::is_first_keys(bias)) {
    const std::int64_t positions = q.size(1);
    rule.add = [bias,
                causal = causal_bias(positions, q),
                whole = nn::ScoreBlock{0, positions, 0, k.size(1), 0}](
                   const recompute::HeadBlock& block, at::Tensor& scores) {
      scores.add_(causal);
      nn::hide_before_first_keys(block.of(bias), whole, scores);
    };
  } else if (bias.defined()) {
    rule.add = [bias](const recompute::HeadBlock& block, at::Tensor& scores) {
      scores.add_(block.of(bias));
    };
  }
  if (dropout > 0) {
    rule.mask = recompute::torch_mask({q.size(0), q.size(1), k.size(1)}, q.options(), dropout);
  }
  return recompute::attend_by_heads(q, k, v, std::move(rule));
}

at::Tensor attend_at_once(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& bias,
    std::int64_t heads,
    double scale,
    double dropout) {
  const auto n = q.size(0);
  const auto batch = n / heads;
  const auto positions = q.size(1);
  const auto keys = k.size(1);
  const auto joined = [&](const at::Tensor& y) {
    return y.view({batch, heads, positions, v.size(2)})
        .transpose(1, 2)
        .reshape({batch, positions, heads * v.size(2)});
  };
  // Scaling q costs S D per head, scaling the scores would cost S T.
  const at::Tensor scaled = scale == 1 ? q : q * scale;
  if (recompute::attends_by_heads(scaled, k, v, bias) && dropout < 1) {
    const recompute::ReturnedProduct returned;
    return joined(attend_some_heads_at_a_time(scaled, k, v, bias, heads, dropout));
  }
  at::Tensor scores = at::bmm(scaled, k.transpose(1, 2));
  if (bias.defined()) {
    // _unsafe_view: the product itself is not used again, so the sum may be
    // made in place without autograd treating it as a change of a view.
    scores = at::_unsafe_view(scores, {batch, heads, positions, keys});
    if (nn::is_first_keys(bias)) {
      scores.add_(causal_bias(positions, scores));
      nn::hide_before_first_keys(bias, {0, positions, 0, keys, 0}, scores);
    } else {
      scores.add_(bias);
    }
    scores = scores.view({n, positions, keys});
  }
  at::Tensor weights = at::softmax(scores, -1);
  if (dropout > 0) {
    weights = recompute::kept_dropout(weights, dropout);
  }
  const recompute::ReturnedProduct returned;
  return joined(recompute::kept_bmm(weights, v));
}

} // namespace

at::Tensor attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& bias,
    std::int64_t heads,
    double scale,
    double dropout) {
  if (!recompute::attentions_recomputed()) {
    return attend_at_once(q, k, v, bias, heads, scale, dropout);
  }
  return recompute::recompute_attention(
      "an attention of the model", {q, k, v, bias}, [=](const std::vector<at::Tensor>& given) {
        return attend_at_once(given[0], given[1], given[2], given[3], heads, scale, dropout);
      });
}

at::Tensor drop(const at::Tensor& x, double probability, bool training) {
  return training && probability > 0 ? recompute::kept_dropout(x, probability) : x;
}

at::Tensor causal_bias(std::int64_t positions, const at::Tensor& like) {
  return at::full({positions, positions}, -std::numeric_limits<double>::infinity(), like.options())
      .triu_(1);
}

at::Tensor padding_bias(const at::Tensor& mask, at::ScalarType dtype) {
  if (!mask.defined()) {
    return {};
  }
  const double lowest =
      dtype == at::kHalf ? -65504.0 : -static_cast<double>(std::numeric_limits<float>::max()) / 2;
  return at::zeros({mask.size(0), 1, 1, mask.size(1)}, mask.options().dtype(dtype))
      .masked_fill_(mask.eq(0).view({mask.size(0), 1, 1, mask.size(1)}), lowest);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(
      logits.reshape({-1, logits.size(-1)}).to(at::promoteTypes(logits.scalar_type(), at::kFloat)),
      targets.reshape({-1}),
      {},
      at::Reduction::Mean,
      kIgnoredTarget);
}

} // namespace tessera::models
