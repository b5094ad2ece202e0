#include "tessera/nn/layers/cross_entropy.h"

#include <limits>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "tessera/autograd/node_data.h"
#include "tessera/base/error.h"
#include "tessera/nn/layers/placement.h"
#include "tessera/nn/parallel/primitives.h"
#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/boundary.h"
#include "tessera/nn/summa/functional.h"

namespace tessera::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct LossCall {
  TensorParallel parallel;
  Range own; // of the vocabulary
};

/// Losses_R of logits_Rv and targets_R; a target outside [0, V) has loss 0 and
/// no gradient.
struct LossNode : Function<LossNode> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& logits,
      const at::Tensor& targets,
      const NodeDataPtr<LossCall>& call) {
    const OwnDerivativeScope scope;
    const Range own = call->value.own;
    const at::Tensor mine = at::logical_and(targets >= own.start, targets < own.end);
    const at::Tensor column = (targets - own.start).masked_fill_(mine.logical_not(), 0);
    const auto wide = at::toOpMathType(logits.scalar_type());
    at::Tensor log_sums;
    at::Tensor scores;
    if (own.size() == 0) {
      log_sums = at::full(
          targets.sizes(), -std::numeric_limits<float>::infinity(), logits.options().dtype(wide));
      scores = at::zeros_like(log_sums);
    } else {
      log_sums = at::logsumexp(logits.to(wide), {1});
      scores = logits.gather(1, column.unsqueeze(1)).squeeze(1).to(wide).mul_(mine);
    }
    const at::Tensor all = gather_blocks(call->value.parallel, at::stack({log_sums, scores}));
    const at::Tensor log_sum = at::logsumexp(all.select(1, 0), {0});
    const at::Tensor score = all.select(1, 1).sum(0);
    const at::Tensor counts = targets >= 0;
    context->set_materialize_grads(false);
    context->save_for_backward({logits, log_sum, column, mine, counts});
    scope.saves({logits, log_sum});
    return (log_sum - score).masked_fill_(counts.logical_not(), 0);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    require_first_order("a cross entropy that tensor parallelism divides");
    if (!grads[0].defined()) {
      return variable_list(3);
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor& logits = saved[0];
    if (logits.size(1) == 0) {
      return {at::zeros_like(logits), {}, {}};
    }
    const at::Tensor factor = grads[0].masked_fill(saved[4].logical_not(), 0).unsqueeze(1);
    at::Tensor gradient =
        (logits.to(saved[1].scalar_type()) - saved[1].unsqueeze(1)).exp_().mul_(factor);
    gradient.scatter_add_(1, saved[2].unsqueeze(1), -(factor * saved[3].unsqueeze(1)));
    return {gradient.to(logits.scalar_type()), {}, {}};
  }
};

} // namespace

DistributedCrossEntropyImpl::DistributedCrossEntropyImpl(
    const DistributedCrossEntropyOptions& options)
    : options(options) {}

Range DistributedCrossEntropyImpl::own_classes() const {
  if (inside_placement(parallel()) == Placement::kOnMesh) {
    const summa::Mesh& mesh = *summa::mesh_of(parallel());
    return even_range(options.vocab_size, mesh.columns(), mesh.column());
  }
  return even_range(options.vocab_size, parallel().size(), parallel().rank());
}

void DistributedCrossEntropyImpl::check(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& counts) const {
  const std::int64_t own = own_classes().size();
  if (logits.size(-1) != own) {
    throw ShapeError(tessera::str(
        "DistributedCrossEntropy: logits have sizes ",
        logits.sizes(),
        "; their last dimension should be this rank's part of the vocabulary, ",
        own,
        " of ",
        options.vocab_size));
  }
  if (tensor_parallel().shapes_only) {
    return;
  }
  const at::Tensor wrong =
      at::logical_and(counts, at::logical_or(targets < 0, targets >= options.vocab_size));
  if (wrong.any().item<bool>()) {
    throw ShapeError(tessera::str(
        "DistributedCrossEntropy: target ",
        targets.masked_select(wrong)[0].item<std::int64_t>(),
        " is outside the vocabulary of ",
        options.vocab_size,
        " and is not ignore_index ",
        options.ignore_index));
  }
}

at::Tensor DistributedCrossEntropyImpl::losses_on_mesh(
    const TensorParallel& parallel,
    const at::Tensor& logits,
    const at::Tensor& targets) const {
  const summa::Boundary boundary(parallel.mesh, parallel.prescaled_batch);
  const at::Tensor of_row = summa::cross_entropy(
      parallel.mesh,
      logits,
      boundary.samples_of_row(targets),
      mesh_blocks(parallel, options.vocab_size, "DistributedCrossEntropy: vocab_size").over_columns,
      options.ignore_index);
  return boundary.own_samples(of_row);
}

at::Tensor DistributedCrossEntropyImpl::losses_of_own_samples(
    const TensorParallel& parallel,
    const at::Tensor& logits,
    const at::Tensor& targets) const {
  const Range own = own_classes();
  Lengths samples;
  at::Tensor all_targets = targets;
  if (!parallel.prescaled_batch) {
    samples = samples_of_ranks(parallel, targets.size(0));
    all_targets = gather(parallel, targets, 0, samples);
  }
  const at::Tensor losses = LossNode::apply(
                                logits.reshape({-1, own.size()}),
                                all_targets.reshape({-1}),
                                node_data(LossCall{parallel, own}))
                                .view(all_targets.sizes());
  return parallel.prescaled_batch ? losses : slice_for_tp(parallel, losses, 0, samples);
}

at::Tensor DistributedCrossEntropyImpl::forward(
    const at::Tensor& logits,
    const at::Tensor& targets) {
  const ForwardScope present(*this);
  const TensorParallel parallel = parallel_now();
  const at::Tensor counts = targets.ne(options.ignore_index);
  check(logits, targets, counts);
  at::Tensor own;
  if (inside_placement(parallel) == Placement::kOnMesh) {
    own = losses_on_mesh(parallel, logits, targets);
  } else {
    const at::Tensor marked = targets.masked_fill(counts.logical_not(), -1).contiguous();
    own = losses_of_own_samples(parallel, logits, marked);
  }
  return own.sum() / counts.sum().to(own.scalar_type());
}

} // namespace tessera::nn
