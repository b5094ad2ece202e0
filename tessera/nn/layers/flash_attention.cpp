#include "tessera/nn/layers/flash_attention.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>

#include "tessera/autograd/node_data.h"
#include "tessera/base/hash.h"
#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/layers/first_keys.h"
#include "tessera/nn/parallel/random_streams.h"
#include "tessera/nn/parallel/skipped.h"

namespace tessera::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr std::int64_t kBlockQueries = 256; // of a block
constexpr std::int64_t kBlockKeys = 256;
constexpr double kNever = -std::numeric_limits<double>::infinity();

struct FlashCall {
  AttentionRule rule;
  std::uint64_t seed = 0; // of the dropout's masks where `use` is empty
  std::optional<random::Use> use;
  random::Place place; // of the weights of all blocks
};

/// One attention that is computed block by block.
class Blockwise {
 public:
  Blockwise(
      const FlashCall& call,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const at::Tensor& mask)
      : call_(call),
        q_(q),
        k_(k),
        v_(v),
        mask_(mask),
        hides_before_first_(is_first_keys(mask)),
        wide_(at::toOpMathType(q.scalar_type())),
        batch_(q.size(0)),
        heads_(q.size(1)),
        key_heads_(k.size(1)),
        queries_(q.size(2)),
        keys_(k.size(2)) {}

  at::ScalarType wide() const {
    return wide_;
  }

  /// Calls `visit` with every block of these queries that is not hidden.
  template <typename Visit>
  void over_keys(std::int64_t query, const Visit& visit) const {
    const std::int64_t queries = std::min(kBlockQueries, queries_ - query);
    const std::int64_t first = hides_before_first_ ? lowest_first_key(mask_, query, queries) : 0;
    for (std::int64_t key = 0; key < keys_; key += kBlockKeys) {
      const ScoreBlock block{
          query, queries, key, std::min(kBlockKeys, keys_ - key), keys_ - queries_};
      const bool before_all = key + block.keys <= first;
      if (!before_all && !hides_all(call_.rule, block)) {
        visit(block);
      }
    }
  }
  template <typename Visit>
  void over_queries(const Visit& visit) const {
    for (std::int64_t query = 0; query < queries_; query += kBlockQueries) {
      visit(query, std::min(kBlockQueries, queries_ - query));
    }
  }

  /// Rows of queries, those that share a key head one below the other:
  /// [B m, n/m s, d].
  at::Tensor rows(const at::Tensor& t, const ScoreBlock& block) const {
    return grouped(t.narrow(2, block.query, block.queries));
  }
  at::Tensor columns(const at::Tensor& t, const ScoreBlock& block) const {
    const at::Tensor part = t.narrow(2, block.key, block.keys);
    return part.reshape({batch_ * key_heads_, block.keys, part.size(3)});
  }
  /// [B, n, s, t or d] and back.
  at::Tensor by_head(const at::Tensor& t, const ScoreBlock& block) const {
    return t.view({batch_, heads_, block.queries, t.size(2)});
  }
  at::Tensor grouped(const at::Tensor& t) const {
    return t.reshape({batch_ * key_heads_, -1, t.size(3)});
  }

  at::Tensor scores(const ScoreBlock& block) const {
    const AttentionRule& rule = call_.rule;
    at::Tensor query = rows(q_, block) * (rule.scale / rule.product_divisor);
    at::Tensor key = columns(k_, block);
    if (rule.in_fp32) {
      query = query.to(wide_);
      key = key.to(wide_);
    }
    at::Tensor all = by_head(at::bmm(query, key.transpose(1, 2)).to(wide_), block);
    if (rule.product_divisor != 1) {
      all.mul_(rule.product_divisor);
    }
    if (hides_before_first_) {
      hide_before_first_keys(mask_, block, all);
    } else if (mask_.defined()) {
      all.add_(mask_block(mask_, block));
    }
    add_by_place(rule, block, all);
    return all;
  }

  /// The part of a tensor that broadcasts to [B, n, S, T].
  static at::Tensor mask_block(const at::Tensor& t, const ScoreBlock& block) {
    const at::Tensor some = t.size(2) == 1 ? t : t.narrow(2, block.query, block.queries);
    return t.size(3) == 1 ? some : some.narrow(3, block.key, block.keys);
  }

  /// Returns the mask and scale that dropout applies to a block's weights: the same
  /// in the forward and in the backward.
  at::Tensor kept(const at::Tensor& weights, const ScoreBlock& block) const {
    if (call_.use) {
      random::Place of_block = call_.place;
      of_block.others.resize(3);
      of_block.others[1] = {block.query, queries_};
      of_block.others[2] = {block.key, keys_};
      return random::dropout_mask(
          weights.sizes(), weights.options(), call_.rule.dropout, *call_.use, of_block);
    }
    const auto place = static_cast<std::uint64_t>(block.query * keys_ + block.key);
    return dropout_mask(weights, call_.rule.dropout, mix_bits(call_.seed + place + kMixStep));
  }
  bool drops() const {
    return call_.rule.dropout > 0;
  }

 private:
  const FlashCall& call_;
  at::Tensor q_, k_, v_, mask_;
  bool hides_before_first_;
  at::ScalarType wide_;
  std::int64_t batch_, heads_, key_heads_, queries_, keys_;
};

struct FlashNode : Function<FlashNode> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const TorchOptional<at::Tensor>& given_mask,
      const NodeDataPtr<FlashCall>& call) {
    context->set_materialize_grads(false);
    const OwnDerivativeScope scope;
    const at::Tensor mask = given_mask.has_value() ? *given_mask : at::Tensor();
    const Blockwise blocks(call->value, q, k, v, mask);
    at::Tensor y = at::empty(q.sizes(), q.options());
    at::Tensor log_sums =
        at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options().dtype(blocks.wide()));
    blocks.over_queries([&](std::int64_t query, std::int64_t count) {
      at::Tensor highest = at::full({q.size(0), q.size(1), count, 1}, kNever, log_sums.options());
      at::Tensor sum = at::zeros_like(highest);
      at::Tensor total = at::zeros({q.size(0), q.size(1), count, q.size(3)}, log_sums.options());
      blocks.over_keys(query, [&](const ScoreBlock& block) {
        const at::Tensor scores = blocks.scores(block);
        const at::Tensor higher = at::maximum(highest, scores.amax(-1, /*keepdim=*/true));
        // A row that has met no key yet stays 0 instead of becoming 0 / 0.
        const at::Tensor level = higher.masked_fill(higher.eq(kNever), 0);
        const at::Tensor shrink = at::exp(highest - level);
        at::Tensor weights = at::exp(scores - level);
        sum = sum * shrink + weights.sum(-1, true);
        if (blocks.drops()) {
          weights = weights * blocks.kept(weights, block);
        }
        const at::Tensor added =
            at::bmm(blocks.grouped(weights.to(v.scalar_type())), blocks.columns(v, block));
        total = total * shrink + blocks.by_head(added.to(blocks.wide()), block);
        highest = higher;
      });
      y.narrow(2, query, count).copy_(total / sum);
      log_sums.narrow(2, query, count)
          .copy_(highest.masked_fill(highest.eq(kNever), 0) + at::log(sum));
    });
    context->save_for_backward({q, k, v, mask, y, log_sums});
    scope.saves({q, k, v, y, log_sums});
    save_node_data(context, call);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    require_first_order("flash attention");
    if (!grads[0].defined()) {
      return variable_list(5);
    }
    const auto data = saved_node_data<FlashCall>(context);
    const auto saved = context->get_saved_variables();
    const at::Tensor& q = saved[0];
    const at::Tensor& k = saved[1];
    const at::Tensor& v = saved[2];
    const at::Tensor& mask = saved[3];
    const at::Tensor& log_sums = saved[5];
    const Blockwise blocks(data->value, q, k, v, mask);
    const double scale = data->value.rule.scale;
    const auto wide = q.options().dtype(blocks.wide());
    const at::Tensor of_q = at::zeros(q.sizes(), wide);
    const at::Tensor of_k = at::zeros(k.sizes(), wide);
    const at::Tensor of_v = at::zeros(v.sizes(), wide);
    const bool for_mask = mask.defined() && context->needs_input_grad(3);
    const at::Tensor of_mask = for_mask ? at::zeros(mask.sizes(), wide) : at::Tensor();
    const auto add_to_keys = [&](const at::Tensor& all, const ScoreBlock& block, at::Tensor part) {
      at::Tensor there = all.narrow(2, block.key, block.keys);
      there.add_(part.view(there.sizes()));
    };
    const at::Tensor g = grads[0].to(q.scalar_type());
    const at::Tensor along = (g.to(blocks.wide()) * saved[4].to(blocks.wide())).sum(-1, true);
    blocks.over_queries([&](std::int64_t query, std::int64_t /*count*/) {
      blocks.over_keys(query, [&](const ScoreBlock& block) {
        const auto of_queries = [&](const at::Tensor& t) {
          return t.narrow(2, block.query, block.queries);
        };
        const at::Tensor weights = at::exp(blocks.scores(block) - of_queries(log_sums));
        const at::Tensor g_rows = blocks.rows(g, block);
        at::Tensor of_weights = blocks.by_head(
            at::bmm(g_rows, blocks.columns(v, block).transpose(1, 2)).to(blocks.wide()), block);
        at::Tensor left = weights;
        if (blocks.drops()) {
          const at::Tensor kept = blocks.kept(weights, block);
          left = weights * kept;
          of_weights = of_weights * kept;
        }
        add_to_keys(
            of_v, block, at::bmm(blocks.grouped(left.to(v.scalar_type())).transpose(1, 2), g_rows));
        const at::Tensor of_scores = weights * (of_weights - of_queries(along));
        if (for_mask) {
          at::Tensor there = Blockwise::mask_block(of_mask, block);
          there.add_(at::sum_to(of_scores, there.sizes()));
        }
        const at::Tensor narrow = blocks.grouped(of_scores.to(q.scalar_type()));
        of_queries(of_q).add_(
            blocks.by_head(at::bmm(narrow, blocks.columns(k, block)), block), scale);
        add_to_keys(of_k, block, at::bmm(narrow.transpose(1, 2), blocks.rows(q, block)) * scale);
      });
    });
    return {
        of_q.to(q.scalar_type()),
        of_k.to(k.scalar_type()),
        of_v.to(v.scalar_type()),
        for_mask ? of_mask.to(mask.scalar_type()) : at::Tensor(),
        {}};
  }
};

} // namespace

at::Tensor blockwise_attention(
    const TensorParallel& parallel,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& mask,
    const AttentionRule& rule) {
  TorchOptional<at::Tensor> given;
  if (mask.defined()) {
    given = mask;
  }
  FlashCall call{rule, 0, {}, {}};
  random::Stream* stream = random::current();
  if (rule.dropout > 0 && stream != nullptr) {
    call.use = random::next_use(*stream);
    call.place = place_of_attention(*stream, parallel, q.size(0), rule.first_head, rule.all_heads);
  } else if (rule.dropout > 0) {
    call.seed = stream_of_shard(parallel);
  }
  return FlashNode::apply(q, k, v, given, node_data(std::move(call)));
}

} // namespace tessera::nn
