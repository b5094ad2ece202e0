#include "tessera/nn/layers/experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/output_layer.h"
#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/parallel/primitives.h"

namespace tessera::nn {

namespace {

void check_experts(const DistributedExpertsOptions& o, const TensorParallel& parallel) {
  if (o.top_k < 1 || o.top_k > o.num_experts) {
    throw ConfigError(tessera::str(
        "DistributedExperts: top_k is ",
        o.top_k,
        "; it should be 1 to num_experts, ",
        o.num_experts));
  }
  if (!(o.capacity_factor >= 0)) {
    throw ConfigError(tessera::str(
        "DistributedExperts: capacity_factor is ",
        o.capacity_factor,
        "; it should be positive, or 0 for no limit"));
  }
  if (o.num_experts < parallel.size()) {
    throw ShapeError(tessera::str(
        "DistributedExperts: ",
        o.num_experts,
        " experts cannot be divided over ",
        parallel.size(),
        " tensor-parallel ranks, every rank needs at least one; use a "
        "tensor_parallel_degree of at most ",
        o.num_experts));
  }
}

std::int64_t capacity_of(const DistributedExpertsOptions& o, std::int64_t tokens) {
  if (o.capacity_factor == 0) {
    return tokens; // all of them may choose one expert
  }
  const double even = o.capacity_factor * static_cast<double>(o.top_k * tokens) /
                      static_cast<double>(o.num_experts);
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(even)));
}

Initializer uniform_for(std::int64_t fan_in) {
  return linear_bias(fan_in); // the same bound for weights of each expert
}

} // namespace

Routing route(const at::Tensor& logits, const DistributedExpertsOptions& o) {
  const std::int64_t tokens = logits.size(0);
  Routing routing;
  routing.capacity = capacity_of(o, tokens);
  const at::Tensor probabilities = at::softmax(logits, 1);
  const auto top = at::topk(probabilities, o.top_k, 1);
  at::Tensor gates = std::get<0>(top);
  if (o.normalize_gates) {
    gates = gates / gates.sum(1, true);
  }
  // [k T]: all first choices, then all second ones.
  const at::Tensor experts = std::get<1>(top).transpose(0, 1).contiguous().view({-1});
  const at::Tensor chosen = at::zeros({experts.size(0), o.num_experts}, experts.options())
                                .scatter_(1, experts.unsqueeze(1), 1);
  const at::Tensor place = chosen.cumsum(0).gather(1, experts.unsqueeze(1)).squeeze(1).sub_(1);
  const at::Tensor kept = (place < routing.capacity).nonzero().squeeze(1);
  routing.tokens = kept.remainder(tokens);
  routing.slots = (experts * routing.capacity + place).index_select(0, kept);
  routing.gates = gates.transpose(0, 1).reshape({-1}).index_select(0, kept);
  const at::Tensor share = chosen.to(probabilities.scalar_type()).mean(0); // no gradient: counts
  routing.balance = (share * probabilities.mean(0)).sum() * static_cast<double>(o.num_experts);
  return routing;
}

DistributedExpertsImpl::DistributedExpertsImpl(const DistributedExpertsOptions& given)
    : options(given) {
  const auto& o = options;
  check_experts(o, parallel());
  const auto create = parameter_creation_scope(*this);
  const std::int64_t experts = o.num_experts;
  const std::int64_t width = o.hidden_size;
  const std::int64_t inner = o.intermediate_size;
  gate = create.initialize_whole("gate", {experts, width}, normal(o.initializer_range));
  inner_weight = create.initialize_with_output_partition(
      "inner_weight", {experts, inner, width}, uniform_for(width));
  inner_bias =
      create.initialize_with_output_partition("inner_bias", {experts, inner}, uniform_for(width));
  outer_weight = create.initialize_with_output_partition(
      "outer_weight", {experts, width, inner}, uniform_for(inner));
  outer_bias =
      create.initialize_with_output_partition("outer_bias", {experts, width}, uniform_for(inner));
}

at::Tensor DistributedExpertsImpl::expert_outputs(const at::Tensor& x) {
  const at::Tensor inner = at::baddbmm(inner_bias.unsqueeze(1), x, inner_weight.transpose(1, 2));
  return at::baddbmm(
      outer_bias.unsqueeze(1), activated(options.activation, inner), outer_weight.transpose(1, 2));
}

std::tuple<at::Tensor, at::Tensor> DistributedExpertsImpl::forward(const at::Tensor& x) {
  const ForwardScope present(*this);
  const auto& o = options;
  if (x.dim() < 2 || x.size(-1) != o.hidden_size) {
    throw ShapeError(tessera::str(
        "DistributedExperts: the input has sizes ",
        x.sizes(),
        "; expected [batch, ..., ",
        o.hidden_size,
        "] (hidden_size)"));
  }
  const TensorParallel parallel = parallel_now();
  const at::Tensor tokens = x.reshape({-1, o.hidden_size});
  // The gate computes in f32 at least, because choices must not depend on rounding.
  const at::ScalarType type = at::promoteTypes(tokens.scalar_type(), at::kFloat);
  const Routing routing = route(at::linear(tokens.to(type), gate.to(type)), o);
  const std::int64_t capacity = routing.capacity;
  at::Tensor sent = tokens;
  at::Tensor gates = routing.gates;
  const bool shared = parallel.prescaled_batch && parallel.size() > 1;
  if (shared) {
    // Every rank adds the part of its own experts to the gradients of both.
    sent = bwd_allreduce_for_tp(parallel, sent);
    gates = bwd_allreduce_for_tp(parallel, gates);
  }
  const Lengths experts = even_lengths(o.num_experts, parallel.size());
  at::Tensor table = at::zeros({o.num_experts * capacity, o.hidden_size}, tokens.options())
                         .index_copy(0, routing.slots, sent.index_select(0, routing.tokens))
                         .view({o.num_experts, capacity, o.hidden_size});
  at::Tensor results;
  if (shared) {
    const Range own = even_range(o.num_experts, parallel.size(), parallel.rank());
    const at::Tensor mine = expert_outputs(table.narrow(0, own.start, own.size()));
    results = at::zeros_like(table).slice_scatter(mine, 0, own.start, own.end);
  } else {
    const Lengths capacities =
        parallel.prescaled_batch ? Lengths{capacity} : exchange_length(parallel, capacity);
    results = scatter_and_merge_for_tp(
        parallel,
        expert_outputs(scatter_and_merge_for_tp(parallel, table, 0, experts, 1, capacities)),
        1,
        capacities,
        0,
        experts);
  }
  const at::Tensor taken = results.reshape({-1, o.hidden_size}).index_select(0, routing.slots) *
                           gates.unsqueeze(1).to(results.scalar_type());
  at::Tensor y = at::zeros_like(tokens).index_add(0, routing.tokens, taken);
  if (shared) {
    y = fwd_allreduce_for_tp(parallel, y);
  }
  return {y.view(x.sizes()), routing.balance};
}

} // namespace tessera::nn
