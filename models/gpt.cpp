#include "models/gpt.h"

#include <cmath>

#include <torch/torch.h>

#include "tessera/nn/layers/first_keys.h"
#include "tessera/nn/layers/lm_head.h"
#include "tessera/nn/layers/transformer_layer.h"
#include "tessera/nn/replace/replacement_registry.h"
#include "tessera/nn/replace/transformer_given.h"
#include "tessera/recompute/kept_products.h"

#include "models/activations.h"
#include "models/state_names.h"

namespace tessera::models {

namespace {

double residual_deviation(const GptOptions& options) {
  return options.initializer_range / std::sqrt(2.0 * static_cast<double>(options.n_layer));
}

LayerNorm make_norm(const GptOptions& options) {
  return LayerNorm(torch::nn::LayerNormOptions({options.n_embd}).eps(options.layer_norm_epsilon));
}

double score_scale(const GptOptions& options, std::int64_t layer) {
  const double width = static_cast<double>(options.n_embd / options.n_head);
  return (options.scale_attn_weights ? 1 / std::sqrt(width) : 1) /
         (options.scale_attn_by_inverse_layer_idx ? static_cast<double>(layer + 1) : 1);
}

} // namespace

GptAttentionImpl::GptAttentionImpl(const GptOptions& options, std::int64_t layer)
    : heads_(options.n_head),
      scale_(score_scale(options, layer)),
      dropout_(options.dropout),
      c_attn_(register_module(
          "c_attn",
          Conv1D(options.n_embd, 3 * options.n_embd, options.initializer_range))),
      c_proj_(register_module(
          "c_proj",
          Conv1D(options.n_embd, options.n_embd, residual_deviation(options)))) {}

at::Tensor GptAttentionImpl::forward(const at::Tensor& x, const at::Tensor& first_keys) {
  const auto batch = x.size(0);
  const auto positions = x.size(1);
  const auto head_width = x.size(2) / heads_;
  // One copy brings queries, keys and values of all heads into place.
  const auto qkv = c_attn_(x)
                       .view({batch, positions, 3, heads_, head_width})
                       .permute({2, 0, 3, 1, 4})
                       .reshape({3, batch * heads_, positions, head_width})
                       .unbind(0);
  const at::Tensor joined = attend(
      qkv[0],
      qkv[1],
      qkv[2],
      first_keys.defined() ? first_keys : causal_bias(positions, x),
      heads_,
      scale_,
      is_training() ? dropout_ : 0);
  return drop(c_proj_(joined), dropout_, is_training());
}

GptMlpImpl::GptMlpImpl(const GptOptions& options)
    : activation_(options.activation_function),
      dropout_(options.dropout),
      c_fc_(nullptr),
      c_proj_(nullptr) {
  const auto inner = options.n_inner == 0 ? 4 * options.n_embd : options.n_inner;
  c_fc_ = register_module("c_fc", Conv1D(options.n_embd, inner, options.initializer_range));
  c_proj_ = register_module("c_proj", Conv1D(inner, options.n_embd, residual_deviation(options)));
}

at::Tensor GptMlpImpl::forward(const at::Tensor& x) {
  const at::Tensor inner = activate(activation_, c_fc_(x));
  const recompute::ReturnedProduct returned;
  return drop(c_proj_(inner), dropout_, is_training());
}

GptBlockImpl::GptBlockImpl(const GptOptions& options, std::int64_t layer)
    : options(options),
      layer(layer),
      ln_1_(register_module("ln_1", make_norm(options))),
      attn_(register_module("attn", GptAttention(options, layer))),
      ln_2_(register_module("ln_2", make_norm(options))),
      mlp_(register_module("mlp", GptMlp(options))) {}

GptBlockImpl::State GptBlockImpl::forward(at::Tensor x, const at::Tensor& first_keys) {
  x = x + attn_(ln_1_(x), first_keys);
  const recompute::ReturnedCall returned(static_cast<const torch::nn::Module*>(this));
  return {returned.of(x + mlp_(ln_2_(x))), first_keys};
}

namespace {

// What the distributed forms of a block lack; the caller keeps the module whole
// and says why.
void refuse_own_head(const GptOptions& options) {
  if (!options.tie_word_embeddings) {
    throw ShapeError("its output layer has a weight of its own (tie_word_embeddings false)");
  }
}

std::string distributed_activation(const GptOptions& options) {
  const std::string& name = options.activation_function;
  if (name == "relu") {
    return name;
  }
  if (name == "gelu" || name == "gelu_python") {
    return "gelu";
  }
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_accurate" ||
      name == "gelu_pytorch_tanh") {
    return "gelu_tanh";
  }
  throw ShapeError(tessera::str(
      "activation_function is ", name, "; a distributed block has gelu, gelu_new and relu"));
}

nn::TransformerOptions distributed_options(const GptOptions& from) {
  nn::TransformerOptions to;
  to.num_attention_heads = from.n_head;
  to.attention_head_size = from.n_embd / from.n_head;
  to.hidden_size = from.n_embd;
  to.intermediate_size = from.n_inner == 0 ? 4 * from.n_embd : from.n_inner;
  to.attention_dropout_prob = from.dropout;
  to.hidden_dropout_prob = from.dropout;
  to.activation = distributed_activation(from);
  to.layernorm_epsilon = from.layer_norm_epsilon;
  to.initializer_range = from.initializer_range;
  to.use_normal_initialization = true;
  to.causal_mask_size = from.n_positions;
  to.pre_layernorm = true;
  to.post_layernorm = false;
  to.scale_attention_scores = from.scale_attn_weights;
  to.scale_attn_by_layer_idx = from.scale_attn_by_inverse_layer_idx;
  return to;
}

nn::TransformerOptions gpt_block_options(const GptBlockImpl& block, const nn::GivenOptions& given) {
  nn::TransformerOptions options = distributed_options(block.options);
  options.layer_idx = block.layer;
  return nn::with_given(given, options);
}

const StateTranslation& gpt_block_translation() {
  static const StateTranslation block = [] {
    StateTranslation of;
    of.linear("ln_1", "attention.pre_layernorm")
        .linear("attn.c_attn", "attention.query_key_value", true)
        .linear("attn.c_proj", "attention.dense", true)
        .linear("ln_2", "output.pre_layernorm")
        .linear("mlp.c_fc", "output.dense1", true)
        .linear("mlp.c_proj", "output.dense2", true);
    return of;
  }();
  return block;
}

} // namespace

TESSERA_TP_REGISTER(GptBlock, nn::DistributedTransformerLayer)
    .init(gpt_block_options)
    .forward([](const at::Tensor& x, const at::Tensor& first_keys) {
      return std::make_tuple(x, first_keys, at::Tensor(), at::Tensor());
    })
    .returns([](const nn::TransformerState& state) {
      return GptBlockImpl::State(std::get<0>(state), std::get<1>(state));
    })
    .state(
        [](const nn::StateMap& state) { return gpt_block_translation().to_distributed(state); },
        [](const nn::StateMap& state) { return gpt_block_translation().to_original(state); });

GptTransformerImpl::GptTransformerImpl(const GptOptions& options)
    : wte(register_module(
          "wte",
          make_embedding(options.vocab_size, options.n_embd, options.initializer_range))),
      positions_(options.n_positions),
      dropout_(options.dropout),
      wpe_(register_module(
          "wpe",
          make_embedding(options.n_positions, options.n_embd, options.initializer_range))),
      h_(register_module("h", nn::Sequential())),
      ln_f_(nullptr) {
  for (std::int64_t i = 0; i < options.n_layer; ++i) {
    h_->push_back(GptBlock(options, i));
  }
  ln_f_ = register_module("ln_f", make_norm(options));
}

at::Tensor GptTransformerImpl::forward(
    const at::Tensor& ids,
    const at::Tensor& document_begins,
    const at::Tensor& positions) {
  if (ids.dim() != 2 || ids.size(1) > positions_) {
    throw ShapeError(tessera::str(
        "gpt: ids are ",
        ids.sizes(),
        ", expected [batch, sequence] with a sequence of at most ",
        positions_,
        " (n_positions)"));
  }
  const at::Tensor places =
      positions.defined() ? positions : at::arange(ids.size(1), ids.options());
  const auto last = h_->forward_as<GptBlockImpl::State>(
      drop(wte(ids) + wpe_(places), dropout_, is_training()), nn::first_keys(document_begins));
  return ln_f_(std::get<0>(last));
}

GptImpl::GptImpl(const GptOptions& options)
    : options_(options),
      transformer_(register_module("transformer", GptTransformer(options))),
      tied_head_(nullptr),
      own_head_(nullptr) {
  if (options.tie_word_embeddings) {
    tied_head_ = register_module("lm_head", TiedLinear(transformer_->wte->weight));
  } else {
    own_head_ = register_module(
        "lm_head",
        make_linear(options.n_embd, options.vocab_size, options.initializer_range, /*bias=*/false));
  }
}

at::Tensor GptImpl::forward(
    const at::Tensor& ids,
    const at::Tensor& targets,
    const at::Tensor& document_begins,
    const at::Tensor& positions) {
  const at::Tensor hidden = transformer_(ids, document_begins, positions);
  const at::Tensor logits = own_head_.is_empty() ? tied_head_(hidden) : own_head_(hidden);
  return targets.defined() ? cross_entropy(logits, targets) : logits;
}

namespace {

StateTranslation gpt_translation(const GptOptions& options) {
  StateTranslation all;
  all.tensor("transformer.wte.weight", "word_embedding.weight")
      .tensor("transformer.wpe.weight", "position_embedding.weight")
      .linear("transformer.ln_f", "layernorm");
  for (std::int64_t i = 0; i < options.n_layer; ++i) {
    all.part(
        tessera::str("transformer.h.", i, "."),
        tessera::str("transformer.seq_layers.", i, "."),
        gpt_block_translation());
  }
  return all;
}

} // namespace

// On a mesh always, so that activations stay there from the embedding to the
// loss. Else only where it is asked for: block by block leaves the embedding and
// the output layer as they are, and costs them no collective.
TESSERA_TP_REGISTER(Gpt, nn::DistributedTransformerLMHead)
    .init([](const GptImpl& gpt, const nn::GivenOptions& given) {
      const bool on_mesh = nn::tensor_parallel().distribution == nn::Distribution::kTwoD;
      if (!given.get("whole_model", on_mesh)) {
        throw ShapeError(
            "its blocks are replaced one by one; with the option "
            "\"whole_model\" of tensor_parallelism it becomes one "
            "DistributedTransformerLMHead");
      }
      const GptOptions& from = gpt.options();
      refuse_own_head(from);
      nn::TransformerOptions to = nn::with_given(given, distributed_options(from));
      to.num_layers = from.n_layer;
      to.vocab_size = from.vocab_size;
      to.num_positions = from.n_positions;
      return to;
    })
    .forward([](const at::Tensor& ids,
                const at::Tensor& targets,
                const at::Tensor& document_begins,
                const at::Tensor& positions) {
      const at::Tensor none;
      return std::make_tuple(
          ids, nn::first_keys(document_begins), none, positions, none, none, targets);
    })
    .state(
        [](const nn::StateMap& state, const GptImpl& gpt) {
          return gpt_translation(gpt.options()).to_distributed(state);
        },
        [](const nn::StateMap& state, const GptImpl& gpt) {
          return gpt_translation(gpt.options()).to_original(state);
        });

} // namespace tessera::models
