// fp32_residual_addition: in 16 bits the sums stay in f32 from norm to norm.
#include "tessera/half/operators.h"
#include "tessera/nn/layers/lm_head.h"
#include "tessera/nn/layers/transformer_layer.h"

#include "layer_comparison.h"

namespace tessera::testing {
namespace {

class ResidualSums : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(
    Settings,
    ResidualSums,
    ::testing::ValuesIn(all_settings()),
    [](const auto& info) { return info.param.name(); });

TransformerOptions deep_options(bool norms_first) {
  TransformerOptions o = small_options();
  o.num_layers = 4;
  o.causal_mask_size = 6;
  o.pre_layernorm = norms_first;
  o.post_layernorm = !norms_first;
  return o;
}

double distance(const torch::Tensor& found, const torch::Tensor& wanted) {
  const auto difference = (found.detach().to(torch::kFloat) - wanted).norm();
  return (difference / wanted.norm()).item<double>();
}

/// Of all that this rank has of the gradients, since small parts of them in 16 bits are noise.
/// Collective over the group.
double distance_of_gradients(
    const nn::TensorParallel& parallel,
    const torch::nn::Module& module,
    const std::map<std::string, torch::Tensor>& wanted) {
  std::vector<torch::Tensor> found;
  std::vector<torch::Tensor> parts;
  for (const auto& parameter : distributed_parameters(module)) {
    auto local = parameter.tensor.grad().to(torch::kFloat);
    if (!parameter.description.scaled_batch && !parallel.prescaled_batch && parallel.size() > 1) {
      parallel.group->all_reduce(local); // data parallel: the ranks' samples
    }
    found.push_back(local.flatten());
    parts.push_back(
        nn::take_shard(parameter.description.shard, wanted.at(parameter.name)).flatten());
  }
  return distance(torch::cat(found), torch::cat(parts));
}

nn::DistributedTransformer stack_of(TransformerOptions options, bool in_f32) {
  options.fp32_residual_addition = in_f32;
  auto stack = seeded(4, [&] { return nn::DistributedTransformer(options); });
  stack->to(torch::kBFloat16);
  return stack;
}

/// Outputs and gradients of a stack in bf16 beside the same in f32, whose weights and inputs bf16
/// holds as well: `check` gets the errors without and with sums in f32.
void compare_stacks(
    const Setting& setting,
    const TransformerOptions& options,
    const std::function<void(double, double)>& check) {
  auto plain = seeded(4, [&] { return PlainTransformer(options); });
  for (torch::Tensor parameter : plain->parameters()) {
    parameter.set_data(parameter.detach().to(torch::kBFloat16).to(torch::kFloat));
  }
  const auto samples = uneven_samples(setting.tp);
  const auto x = (fixed_random({2 * setting.tp + 1, 6, options.hidden_size}, 3) *
                  (options.pre_layernorm ? 40 : 1))
                     .to(torch::kBFloat16);
  const auto wanted = plain->forward(x.to(torch::kFloat), {}, {}, {});
  const auto weights = fixed_random(wanted.sizes().vec(), 5);
  (wanted * weights).sum().backward();
  const auto gradients = gradients_of(*plain);
  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    std::vector<double> errors;
    for (const bool in_f32 : {false, true}) {
      auto stack = stack_of(options, in_f32);
      // Who gives f32 gets f32, not rounded at the end.
      const bool wide = in_f32 && options.pre_layernorm;
      const auto mine = own_part(parallel, x, samples).to(wide ? torch::kFloat : torch::kBFloat16);
      const auto found = stack->hidden_states(mine);
      EXPECT_EQ(found.scalar_type(), mine.scalar_type());
      errors.push_back(distance(found, own_part(parallel, wanted.detach(), samples)));
      (found * own_part(parallel, weights, samples)).sum().backward();
      EXPECT_LT(distance_of_gradients(parallel, *stack, gradients), 0.05);
    }
    check(errors[0], errors[1]);
  });
}

TEST_P(ResidualSums, AreCloserToF32) {
  for (const bool together : {false, true}) {
    TransformerOptions options = deep_options(true);
    options.parallel_attention_output = together;
    compare_stacks(GetParam(), options, [](double without, double with) {
      EXPECT_GT(without, 1e-3);
      EXPECT_LT(with, 0.2 * without);
    });
  }
}

// A norm behind each sum rounds its result all the same.
TEST_P(ResidualSums, AreReadByTheNormsBehindThem) {
  compare_stacks(GetParam(), deep_options(false), [](double without, double with) {
    EXPECT_NE(with, without);
    EXPECT_LT(with, 0.02);
  });
}

// Sums of 60,000 and more, of which f16 has no numbers beyond 65,504.
TEST_P(ResidualSums, DoNotOverflowInF16) {
  half::support_processor();
  const Setting setting = GetParam();
  TransformerOptions options = deep_options(true);
  options.num_layers = 2;
  options.initializer_range = 5000;
  options.add_lm_head = false;
  const auto raise = [](const std::string& name, const torch::Tensor& tensor) {
    if (name.ends_with("dense.bias") || name.ends_with("dense2.bias")) {
      const torch::NoGradGuard no_grad;
      tensor.detach().add_(60000);
    }
  };
  auto plain = seeded(4, [&] { return PlainLMHead(options); });
  for (const auto& item : plain->named_parameters()) {
    raise(item.key(), item.value());
    item.value().set_data(item.value().detach().to(torch::kHalf).to(torch::kFloat));
  }
  const auto samples = uneven_samples(setting.tp);
  const auto ids = torch::arange(2 * setting.tp + 1).remainder(options.vocab_size).unsqueeze(1);
  const auto embedded = plain->word_embedding(ids) + plain->position_embedding(torch::arange(1));
  const auto wanted = plain->layernorm(plain->transformer->forward(embedded, {}, {}, {})).detach();
  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    for (const bool in_f32 : {false, true}) {
      TransformerOptions own = options;
      own.fp32_residual_addition = in_f32;
      auto model = seeded(4, [&] { return nn::DistributedTransformerLMHead(own); });
      for (const auto& parameter : distributed_parameters(*model)) {
        raise(parameter.name, parameter.tensor);
      }
      model->to(torch::kHalf);
      nn::LMHeadInputs inputs;
      inputs.input_ids = own_part(parallel, ids, samples);
      const auto hidden = model->run(inputs);
      EXPECT_EQ(hidden.scalar_type(), torch::kHalf);
      EXPECT_EQ(hidden.isfinite().all().item<bool>(), in_f32);
      if (in_f32) {
        EXPECT_LT(distance(hidden, own_part(parallel, wanted, samples)), 5e-3);
      }
    }
  });
}

// A layer by itself gives what it was given, so that the module behind it can read it.
TEST_P(ResidualSums, ALayerAloneKeepsTheTypeOfItsInput) {
  const Setting setting = GetParam();
  TransformerOptions options = deep_options(true);
  options.fp32_residual_addition = true;
  const auto samples = uneven_samples(setting.tp);
  const auto all = fixed_random({2 * setting.tp + 1, 6, options.hidden_size}, 8) * 40;
  on_ranks(setting, [&](const nn::TensorParallel& parallel) {
    auto layer = seeded(9, [&] { return nn::DistributedTransformerLayer(options); });
    layer->to(torch::kBFloat16);
    const auto x = own_part(parallel, all, samples).to(torch::kBFloat16);
    const auto narrow = layer->hidden_states(x);
    EXPECT_EQ(narrow.scalar_type(), torch::kBFloat16);
    const auto wide = layer->hidden_states(x.to(torch::kFloat));
    EXPECT_EQ(wide.scalar_type(), torch::kFloat);
    EXPECT_LT(distance(narrow, wide.detach()), 1.0 / 256);
    EXPECT_FALSE(wide.to(torch::kBFloat16).to(torch::kFloat).equal(wide)); // nothing was rounded
  });
}

} // namespace
} // namespace tessera::testing
