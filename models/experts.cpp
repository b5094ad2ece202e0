#include "models/experts.h"

#include <cmath>

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/output_layer.h"
#include "tessera/nn/replace/replacement_registry.h"

namespace tessera::models {

namespace {

at::Tensor uniform(const std::vector<std::int64_t>& sizes, std::int64_t fan_in) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return torch::empty(sizes).uniform_(-bound, bound);
}

LayerNorm expert_norm(const GptOptions& options) {
  return LayerNorm(torch::nn::LayerNormOptions({options.n_embd}).eps(options.layer_norm_epsilon));
}

} // namespace

// Names, layouts and options are the same on both sides.
TESSERA_TP_REGISTER(Experts, nn::DistributedExperts);

ExpertsImpl::ExpertsImpl(const ExpertsOptions& given) : options(given) {
  const auto& o = options;
  const auto experts = o.num_experts;
  const auto width = o.hidden_size;
  const auto inner = o.intermediate_size;
  gate_ =
      register_parameter("gate", torch::empty({experts, width}).normal_(0, o.initializer_range));
  inner_weight_ = register_parameter("inner_weight", uniform({experts, inner, width}, width));
  inner_bias_ = register_parameter("inner_bias", uniform({experts, inner}, width));
  outer_weight_ = register_parameter("outer_weight", uniform({experts, width, inner}, inner));
  outer_bias_ = register_parameter("outer_bias", uniform({experts, width}, inner));
}

std::tuple<at::Tensor, at::Tensor> ExpertsImpl::forward(const at::Tensor& x) {
  const auto& o = options;
  const at::Tensor tokens = x.reshape({-1, o.hidden_size});
  const at::ScalarType type = at::promoteTypes(tokens.scalar_type(), at::kFloat);
  const nn::Routing routing = nn::route(at::linear(tokens.to(type), gate_.to(type)), o);
  const at::Tensor expert_of = routing.slots.div(routing.capacity, "floor");
  at::Tensor y = at::zeros_like(tokens);
  for (std::int64_t e = 0; e < o.num_experts; ++e) {
    const at::Tensor mine = expert_of.eq(e).nonzero().squeeze(1);
    const at::Tensor rows = routing.tokens.index_select(0, mine);
    const at::Tensor inner = nn::activated(
        o.activation, at::linear(tokens.index_select(0, rows), inner_weight_[e], inner_bias_[e]));
    const at::Tensor gates = routing.gates.index_select(0, mine).unsqueeze(1).to(x.scalar_type());
    y = y.index_add(0, rows, at::linear(inner, outer_weight_[e], outer_bias_[e]) * gates);
  }
  return {y.view(x.sizes()), routing.balance};
}

ExpertBlockImpl::ExpertBlockImpl(const GptOptions& gpt, const ExpertsOptions& experts)
    : ln_1_(register_module("ln_1", expert_norm(gpt))),
      attn_(register_module("attn", GptAttention(gpt))),
      ln_2_(register_module("ln_2", expert_norm(gpt))),
      experts_(register_module("experts", Experts(experts))) {}

std::tuple<at::Tensor, at::Tensor> ExpertBlockImpl::forward(
    const at::Tensor& x,
    const at::Tensor& balance) {
  const at::Tensor attended = x + attn_(ln_1_(x));
  const auto mixed = experts_(ln_2_(attended));
  return {attended + std::get<0>(mixed), balance + std::get<1>(mixed)};
}

ExpertModelImpl::ExpertModelImpl(const GptOptions& gpt, ExpertsOptions experts)
    : wte_(register_module(
          "wte",
          make_embedding(gpt.vocab_size, gpt.n_embd, gpt.initializer_range))),
      wpe_(register_module(
          "wpe",
          make_embedding(gpt.n_positions, gpt.n_embd, gpt.initializer_range))),
      h_(register_module("h", nn::Sequential())),
      ln_f_(nullptr),
      lm_head_(nullptr) {
  if (!gpt.tie_word_embeddings || gpt.scale_attn_by_inverse_layer_idx) {
    throw ConfigError(
        "a model of experts has tied embeddings and the same scale of attention scores in every "
        "layer; leave out tie_word_embeddings and scale_attn_by_inverse_layer_idx");
  }
  experts.hidden_size = gpt.n_embd;
  for (std::int64_t i = 0; i < gpt.n_layer; ++i) {
    h_->push_back(ExpertBlock(gpt, experts));
  }
  ln_f_ = register_module("ln_f", expert_norm(gpt));
  lm_head_ = register_module("lm_head", TiedLinear(wte_->weight));
}

std::tuple<at::Tensor, at::Tensor> ExpertModelImpl::forward(const at::Tensor& ids) {
  const at::Tensor places = at::arange(ids.size(1), ids.options());
  const at::Tensor x = wte_(ids) + wpe_(places);
  const auto result = h_->forward_as<std::tuple<at::Tensor, at::Tensor>>(
      x, at::zeros({}, x.options().dtype(at::kFloat)));
  return {lm_head_(ln_f_(std::get<0>(result))), std::get<1>(result)};
}

} // namespace tessera::models
