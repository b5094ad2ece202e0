// The distributed transformer between processes, f32 and bf16.
#include <numeric>

#include "tessera/nn/layers/lm_head.h"

#include "tests/unit/nn_layers/plain_transformer.h"
#include "tests/unit/nn_layers/ranks.h"

namespace tessera::testing {
namespace {

TransformerOptions model_options() {
  TransformerOptions o;
  o.num_attention_heads = 5;
  o.attention_head_size = 4;
  o.hidden_size = 18;
  o.intermediate_size = 30;
  o.attention_dropout_prob = 0;
  o.hidden_dropout_prob = 0;
  o.num_layers = 2;
  o.vocab_size = 21;
  o.num_positions = 8;
  o.causal_mask_size = 8;
  o.pre_layernorm = true;
  o.post_layernorm = false;
  o.initializer_range = 0.3;
  return o;
}

/// Loss of the ranks together and gradients beside the plain model's.
void compare(const nn::TensorParallel& parallel, torch::ScalarType dtype, double tolerance) {
  const auto options = model_options();
  const int ranks = parallel.size();
  torch::manual_seed(3);
  const auto ids = torch::randint(options.vocab_size, {2L * ranks, 8}, torch::kLong);
  const auto labels = torch::randint(options.vocab_size, {2L * ranks, 8}, torch::kLong);
  torch::manual_seed(4);
  PlainLMHead plain(options);
  const auto logits = plain(
      ids, torch::Tensor(), torch::Tensor(), torch::Tensor(), torch::Tensor(), torch::Tensor());
  // Every rank's mean counts once, as many means as ranks with own samples.
  const auto loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten()) *
                    (parallel.prescaled_batch ? 1 : ranks);
  loss.backward();

  torch::manual_seed(4);
  nn::DistributedTransformerLMHead model(options);
  expect_parts_of(*model, parameters_of(*plain));
  model->to(dtype);
  const std::vector<std::int64_t> samples(ranks, 2);
  nn::LMHeadInputs inputs;
  inputs.input_ids = own_part(parallel, ids, samples);
  inputs.labels = own_part(parallel, labels, samples);
  const auto found = model->run(inputs);
  found.backward();
  auto sum = found.detach().clone();
  if (!parallel.prescaled_batch) {
    parallel.group->all_reduce(sum);
  }
  expect_close(sum, loss, "loss", tolerance);
  expect_gradients(parallel, *model, gradients_of(*plain), tolerance);
}

TEST(LanguageModelOverProcesses, EqualsThePlainModel) {
  const auto world = comm::mpi_world({});
  std::vector<int> ranks(world->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world->new_group("tp", ranks);
  for (const auto distribution : {nn::Distribution::kSpeed, nn::Distribution::kMemory}) {
    for (const bool prescaled : {false, true}) {
      nn::TensorParallel parallel;
      parallel.group = group.get();
      parallel.distribution = distribution;
      parallel.prescaled_batch = prescaled;
      const nn::TensorParallelScope scope(parallel);
      compare(parallel, torch::kFloat, 1e-5);
      compare(parallel, torch::kBFloat16, 0.05);
    }
  }
}

} // namespace
} // namespace tessera::testing
