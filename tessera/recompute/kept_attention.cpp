#include "tessera/recompute/kept_attention.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/autograd/node_data.h"
#include "tessera/recompute/dropout_bits.h"
#include "tessera/recompute/kept_products.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera::recompute {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr std::int64_t kBlockBytes = 1 << 20; // of scores: a second-level cache

at::Tensor turned(const at::Tensor& t) {
  return t.transpose(1, 2);
}

/// The matrices of one attention, block by block.
class HeadBlocks {
 public:
  HeadBlocks(const HeadRule& rule, at::Tensor q, at::Tensor k, at::Tensor bits)
      : rule_(rule),
        q_(std::move(q)),
        k_(std::move(k)),
        bits_(std::move(bits)),
        key_heads_(q_.size(0) / rule.batch),
        rows_(q_.size(1)),
        keys_(k_.size(1)) {}

  /// Calls visit(first matrix, number of matrices) for each block.
  template <typename Visit>
  void visit(const Visit& visit) const {
    const std::int64_t bytes = std::max<std::int64_t>(1, rows_ * keys_ * q_.element_size());
    const std::int64_t most = std::max<std::int64_t>(1, kBlockBytes / bytes);
    // Whole samples, or heads of one.
    const std::int64_t span = most < key_heads_ ? key_heads_ : most - most % key_heads_;
    for (std::int64_t sample = 0; sample < q_.size(0); sample += span) {
      const std::int64_t end = std::min(sample + span, q_.size(0));
      for (std::int64_t first = sample; first < end; first += most) {
        visit(first, std::min(most, end - first));
      }
    }
  }

  /// A matrix of scores for each matrix of a block, whose numbers are not set.
  at::Tensor buffer(std::int64_t count) const {
    return at::empty({count, rows_, keys_}, q_.options());
  }

  /// Returns the softmax of a block's scores; `scores` is overwritten.
  at::Tensor weigh(std::int64_t first, at::Tensor& scores) const {
    const std::int64_t count = scores.size(0);
    at::bmm_out(scores, q_.narrow(0, first, count), turned(k_.narrow(0, first, count)));
    if (rule_.add) {
      const std::int64_t samples = std::max<std::int64_t>(1, count / key_heads_);
      const std::int64_t shared = rule_.heads / key_heads_;
      const std::int64_t heads = count / samples * shared;
      at::Tensor by_head = scores.view({samples, heads, rows_ / shared, keys_});
      rule_.add({first / key_heads_, samples, first % key_heads_ * shared, heads}, by_head);
    }
    // Not its form with an output, for which half/operators.h has no kernel.
    return at::softmax(scores, -1);
  }

  /// Sets y to x with what dropout leaves of this block; returns x where nothing is dropped.
  const at::Tensor& drop(std::int64_t first, const at::Tensor& x, const at::Tensor& y) const {
    if (!bits_.defined()) {
      return x;
    }
    multiply_by_mask(x, bits_, first * rows_ * keys_, y);
    return y;
  }

 private:
  const HeadRule& rule_;
  at::Tensor q_, k_, bits_;
  std::int64_t key_heads_, rows_, keys_;
};

struct KeptAttention : Function<KeptAttention> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& given,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const TorchOptional<at::Tensor>& bits,
      const NodeDataPtr<HeadRule>& rule) {
    context->set_materialize_grads(false);
    context->save_for_backward({q, k, v, bits.has_value() ? *bits : at::Tensor()});
    save_node_data(context, rule);
    return given.variable_data();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    require_first_order("an attention that is kept");
    if (!gradients[0].defined()) {
      return variable_list(6);
    }
    const auto rule = saved_node_data<HeadRule>(context);
    const auto saved = context->get_saved_variables();
    const at::Tensor& q = saved[0];
    const at::Tensor& k = saved[1];
    const at::Tensor& v = saved[2];
    const at::Tensor& g = gradients[0];
    const HeadBlocks blocks(rule->value, q, k, saved[3]);
    const at::Tensor of_q = at::empty(q.sizes(), q.options());
    const at::Tensor of_k = at::empty({k.size(0), k.size(2), k.size(1)}, k.options()); // turned
    const at::Tensor of_v = at::empty(v.sizes(), v.options());
    at::Tensor scores, dropped;
    blocks.visit([&](std::int64_t first, std::int64_t count) {
      if (!scores.defined() || scores.size(0) != count) {
        scores = blocks.buffer(count);
        dropped = saved[3].defined() ? blocks.buffer(count) : at::Tensor();
      }
      const auto here = [&](const at::Tensor& t) { return t.narrow(0, first, count); };
      const auto set = [&](const at::Tensor& to, const at::Tensor& a, const at::Tensor& b) {
        at::Tensor part = here(to);
        at::bmm_out(part, a, b);
      };
      const at::Tensor weights = blocks.weigh(first, scores);
      set(of_v, turned(blocks.drop(first, weights, dropped)), here(g));
      at::bmm_out(scores, here(g), turned(here(v)));
      const at::Tensor& of_weights = blocks.drop(first, scores, scores);
      const at::Tensor of_scores =
          at::_softmax_backward_data(of_weights, weights, -1, weights.scalar_type());
      set(of_q, of_scores, here(k));
      set(of_k, turned(here(q)), of_scores);
    });
    return {at::Tensor(), of_q, turned(of_k), of_v, at::Tensor(), at::Tensor()};
  }
};

at::Tensor attended(
    const HeadRule& rule,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& bits) {
  const at::NoGradGuard no_grad;
  const HeadBlocks blocks(rule, q, k, bits);
  const at::Tensor y = at::empty({q.size(0), q.size(1), v.size(2)}, q.options());
  at::Tensor scores;
  blocks.visit([&](std::int64_t first, std::int64_t count) {
    if (!scores.defined() || scores.size(0) != count) {
      scores = blocks.buffer(count);
    }
    const at::Tensor weights = blocks.weigh(first, scores);
    at::Tensor part = y.narrow(0, first, count);
    at::bmm_out(part, blocks.drop(first, weights, weights), v.narrow(0, first, count));
  });
  return y;
}

} // namespace

at::Tensor HeadBlock::of(const at::Tensor& t) const {
  at::Tensor part = t;
  if (t.dim() >= 3 && t.size(-3) > 1) {
    part = part.narrow(-3, head, heads);
  }
  if (t.dim() >= 4 && t.size(-4) > 1) {
    part = part.narrow(-4, sample, samples);
  }
  return part;
}

bool attends_by_heads(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& added) {
  const bool kept = masks_are_kept() && !at::GradMode::is_enabled();
  const auto fits = [&](const at::Tensor& t) {
    return t.device().is_cpu() && t.scalar_type() == q.scalar_type() && t.numel() > 0;
  };
  return (kept || masks_are_given()) && q.is_floating_point() && fits(q) && fits(k) && fits(v) &&
         !(added.defined() && added.requires_grad()) && !cpu_autocast::enabled();
}

at::Tensor
attend_by_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, HeadRule rule) {
  TorchOptional<at::Tensor> bits;
  if (rule.mask) {
    bits = kept_bits(q.size(0) * q.size(1) * k.size(1), *rule.mask);
    rule.mask.reset();
  }
  if (const at::Tensor given = given_product(); given.defined()) {
    return KeptAttention::apply(given, q, k, v, bits, node_data(std::move(rule)));
  }
  const at::Tensor y = attended(rule, q, k, v, bits.has_value() ? *bits : at::Tensor());
  keep_product(y);
  return y;
}

} // namespace tessera::recompute
