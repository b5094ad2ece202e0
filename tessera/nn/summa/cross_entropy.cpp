#include <ATen/ATen.h>

#include "tessera/autograd/node_data.h"
#include "tessera/comm/process_group.h"
#include "tessera/nn/parallel/collectives.h"
#include "tessera/nn/parallel/skipped.h"
#include "tessera/nn/summa/functional.h"

namespace tessera::nn::summa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Classes {
  MeshPtr mesh;
  Blocks vocabulary;
  std::int64_t ignored;
};

class CrossEntropyOnMesh : public torch::autograd::Function<CrossEntropyOnMesh> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& logits,
      const at::Tensor& targets,
      const NodeDataPtr<Classes>& classes) {
    const OwnDerivativeScope scope;
    const Classes& of = classes->value;
    const Mesh& mesh = *of.mesh;
    const at::Tensor x = logits.reshape({-1, logits.size(-1)})
                             .to(at::promoteTypes(logits.scalar_type(), at::kFloat));
    const at::Tensor labels = targets.reshape({-1});
    const at::Tensor largest = std::get<0>(x.max(1));
    all_reduce(mesh.along_row(), largest, comm::ReduceOp::kMax);
    at::Tensor powers = (x - largest.unsqueeze(1)).exp_();

    // One rank of the row holds the target's logit; the others contribute 0 to the sum.
    const std::int64_t start = of.vocabulary.start(mesh.column());
    const at::Tensor here =
        labels.ge(start).logical_and_(labels.lt(start + of.vocabulary.size(mesh.column())));
    const at::Tensor index = at::where(here, labels - start, at::zeros_like(labels));
    const at::Tensor own = x.gather(1, index.unsqueeze(1)).squeeze(1).mul_(here);
    const at::Tensor sums = at::stack({powers.sum(1), own});
    all_reduce(mesh.along_row(), sums);

    const at::Tensor counts = labels.ne(of.ignored);
    const at::Tensor loss = (sums[0].log() + largest - sums[1]).mul_(counts);
    powers.div_(sums[0].unsqueeze(1)); // softmax probabilities from here on
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({powers, index, here, counts});
    scope.saves({powers});
    ctx->saved_data["dtype"] = static_cast<std::int64_t>(logits.scalar_type());
    ctx->saved_data["sizes"] = logits.sizes().vec();
    return loss.view(targets.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    require_first_order("a cross entropy on a mesh");
    if (!gradients[0].defined()) {
      return variable_list(3);
    }
    const auto tensors = ctx->get_saved_variables();
    const at::Tensor weight =
        (gradients[0].reshape({-1}).to(tensors[0].scalar_type()) * tensors[3]).unsqueeze(1);
    at::Tensor gradient = tensors[0] * weight;
    gradient.scatter_add_(1, tensors[1].unsqueeze(1), -weight * tensors[2].unsqueeze(1));
    return {
        gradient.to(static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt()))
            .view(ctx->saved_data["sizes"].toIntVector()),
        at::Tensor(),
        at::Tensor()};
  }
};

} // namespace

at::Tensor cross_entropy(
    const MeshPtr& mesh,
    const at::Tensor& logits,
    const at::Tensor& targets,
    const Blocks& vocabulary,
    std::int64_t ignored) {
  return CrossEntropyOnMesh::apply(logits, targets, node_data(Classes{mesh, vocabulary, ignored}));
}

} // namespace tessera::nn::summa
