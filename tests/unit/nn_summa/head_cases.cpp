// A language model on the mesh: the loss equals that of whole logits, which
// then do not travel.

#include "tessera/nn/layers/lm_head.h"

#include "cases.h"
#include "weights.h"

namespace tessera::nn::summa::cases {

namespace {

constexpr std::int64_t kWords = 211; // larger than anything else
constexpr std::int64_t kPositions = 4;

TransformerOptions model_options(const Mesh& mesh) {
  TransformerOptions options = layer_options(4 * mesh.columns(), mesh.columns());
  options.num_layers = 1;
  options.vocab_size = kWords;
  options.num_positions = kPositions;
  return options;
}

std::int64_t bytes_of(const Mesh& mesh) {
  return mesh.row_group().traffic().bytes.load() + mesh.column_group().traffic().bytes.load() +
         mesh.group().traffic().bytes.load();
}

void whole_logits_are_never_gathered(const MeshPtr& mesh) {
  auto model = make_on(mesh, [&] { return DistributedTransformerLMHead(model_options(*mesh)); });
  {
    const torch::NoGradGuard no_grad;
    Random values(30 + static_cast<std::uint64_t>(mesh->group().rank()));
    for (at::Tensor& parameter : model->parameters()) {
      parameter.copy_(values.normal(parameter.sizes()).mul_(0.2));
    }
  }
  Random random(50 + static_cast<std::uint64_t>(mesh->group().rank()));
  const std::int64_t samples = 2;
  LMHeadInputs inputs;
  inputs.input_ids = random.integers(kWords, {samples, kPositions});
  const at::Tensor labels = random.integers(kWords, {samples, kPositions});

  std::int64_t before = bytes_of(*mesh);
  const at::Tensor logits = model->run(inputs);
  const std::int64_t with_logits = bytes_of(*mesh) - before;
  const at::Tensor expected = at::cross_entropy_loss(logits.view({-1, kWords}), labels.view({-1}));

  inputs.labels = labels;
  before = bytes_of(*mesh);
  const at::Tensor loss = model->run(inputs);
  const std::int64_t with_loss = bytes_of(*mesh) - before;
  require_close(loss.detach(), expected.detach(), 1e-5, "loss");
  // Labels, largest logits, sums and hits of every position, and no logit.
  const std::int64_t r = mesh->columns();
  const std::int64_t positions = r * samples * kPositions;
  const std::int64_t logits_bytes = (r - 1) * samples * kPositions * (kWords / r) * 4;
  require(
      r == 1 || with_loss <= with_logits - logits_bytes + positions * 8 * 4 * (r - 1),
      tessera::str(
          "the loss moved ", with_loss, " bytes, the logits ", with_logits, " in the same model"));
  loss.backward();
}

} // namespace

const std::vector<Case>& head_cases() {
  static const std::vector<Case> cases = {
      {"whole_logits_are_never_gathered", whole_logits_are_never_gathered},
  };
  return cases;
}

} // namespace tessera::nn::summa::cases
