#include "tessera/nn/layers/transformer_options.h"

#include <cmath>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn {

namespace {

void check_positive(const char* module, const char* name, std::int64_t value) {
  if (value <= 0) {
    throw ConfigError(tessera::str(module, ": ", name, " is ", value, "; it should be at least 1"));
  }
}

void check_probability(const char* module, const char* name, double value) {
  if (!(value >= 0 && value < 1)) {
    throw ConfigError(tessera::str(module, ": ", name, " is ", value, "; it should be in [0, 1)"));
  }
}

void check_mesh(const char* module, const TransformerOptions& o, const summa::Mesh& mesh) {
  const auto check_columns = [&](const char* name, std::int64_t value) {
    if (value < mesh.columns()) {
      throw ShapeError(tessera::str(
          module,
          ": ",
          name,
          " is ",
          value,
          " on a mesh of ",
          mesh.shape_text(),
          ", which needs at least one for every column; make it ",
          mesh.columns(),
          " or more, best a multiple, or write a smaller tensor_parallel_degree than ",
          mesh.group().size()));
    }
  };
  check_columns(
      o.num_key_value_heads > 0 ? "num_key_value_heads" : "num_attention_heads",
      head_groups(o).groups);
  check_columns("hidden_size", o.hidden_size);
}

void check_attention(const char* module, const TransformerOptions& o) {
  const auto refuse = [&](const auto&... text) {
    throw ConfigError(tessera::str(module, ": ", text...));
  };
  const std::int64_t shared = o.num_key_value_heads;
  if (shared < 0 || (shared > 0 && o.num_attention_heads % shared != 0)) {
    refuse(
        "num_key_value_heads is ",
        shared,
        "; it should divide num_attention_heads, which is ",
        o.num_attention_heads,
        " (0: as many)");
  }
  if (!(o.rotary_pct >= 0 && o.rotary_pct <= 1)) {
    refuse("rotary_pct is ", o.rotary_pct, "; it should be in [0, 1]");
  }
  const std::int64_t turned = rotary_width(o);
  if (o.rotary_pct > 0 && (turned < 2 || turned % 2 != 0)) {
    refuse(
        "rotary_pct ",
        o.rotary_pct,
        " of attention_head_size ",
        o.attention_head_size,
        " is ",
        turned,
        " channels; they turn in pairs, so it should be an even number of at least 2");
  }
  if (!(o.rotary_base > 0) || !(o.alibi_bias_max > 0)) {
    refuse(
        "rotary_base is ",
        o.rotary_base,
        " and alibi_bias_max ",
        o.alibi_bias_max,
        "; both should be above 0");
  }
  if (o.attention_window < 0 || (o.attention_window > 0 && !o.causal_mask_size)) {
    refuse(
        "attention_window is ",
        o.attention_window,
        "; a window looks back, so it needs causal_mask_size (0: no window)");
  }
  check_positive(module, "attention_window_period", o.attention_window_period);
  if (o.layer_idx < 0) {
    refuse("layer_idx is ", o.layer_idx, "; layers count from 0");
  }
}

void check_form(const char* module, const TransformerOptions& o) {
  if (!o.pre_layernorm && !o.post_layernorm) {
    throw ConfigError(tessera::str(
        module,
        ": pre_layernorm and post_layernorm are both false; at least one of "
        "them should be true"));
  }
  if (o.parallel_attention_output &&
      (!o.pre_layernorm || o.post_layernorm || o.add_cross_attention)) {
    throw ConfigError(tessera::str(
        module,
        ": parallel_attention_output adds both sub-layers to what they read; it needs "
        "pre_layernorm alone and no add_cross_attention"));
  }
  if (o.shared_layernorm && !o.parallel_attention_output) {
    throw ConfigError(tessera::str(
        module,
        ": shared_layernorm is true; only with parallel_attention_output do attention and output "
        "layer read the same"));
  }
}

} // namespace

Lengths HeadGroups::lengths(int ranks) const {
  Lengths result;
  for (const std::int64_t own : even_lengths(groups, ranks)) {
    result.push_back(own * queries);
  }
  return result;
}

HeadGroups head_groups(const TransformerOptions& o) {
  return o.num_key_value_heads > 0
             ? HeadGroups{o.num_key_value_heads, o.num_attention_heads / o.num_key_value_heads}
             : HeadGroups{o.num_attention_heads, 1};
}

std::int64_t rotary_width(const TransformerOptions& o) {
  // Converting a width to a share and back gives the same width.
  constexpr double kRounding = 1e-6;
  return static_cast<std::int64_t>(
      std::floor(o.rotary_pct * static_cast<double>(o.attention_head_size) + kRounding));
}

std::int64_t window_of_layer(const TransformerOptions& o) {
  const bool last = o.layer_idx % o.attention_window_period == o.attention_window_period - 1;
  return last ? o.attention_window : 0;
}

bool positions_in_attention(const TransformerOptions& o) {
  return o.use_alibi || o.rotary_pct > 0;
}

Range head_groups_here(const TransformerOptions& o, const TensorParallel& parallel) {
  const std::int64_t groups = head_groups(o).groups;
  if (parallel.distribution == Distribution::kTwoD) {
    const summa::Mesh& mesh = *summa::mesh_of(parallel);
    return even_range(groups, mesh.columns(), mesh.column());
  }
  return even_range(groups, parallel.size(), parallel.rank());
}

void check_options(
    const char* module,
    const TransformerOptions& o,
    const TensorParallel& parallel) {
  check_positive(module, "num_attention_heads", o.num_attention_heads);
  check_positive(module, "attention_head_size", o.attention_head_size);
  check_positive(module, "hidden_size", o.hidden_size);
  check_positive(module, "intermediate_size", o.intermediate_size);
  check_probability(module, "attention_dropout_prob", o.attention_dropout_prob);
  check_probability(module, "hidden_dropout_prob", o.hidden_dropout_prob);
  check_probability(module, "intermediate_dropout_prob", o.intermediate_dropout_prob);
  if (o.activation != "gelu" && o.activation != "gelu_tanh" && o.activation != "relu" &&
      o.activation != "silu") {
    throw ConfigError(tessera::str(
        module,
        ": activation is \"",
        o.activation,
        "\"; write \"gelu\", \"gelu_tanh\", \"relu\" or \"silu\""));
  }
  check_attention(module, o);
  check_form(module, o);
  if (parallel.distribution == Distribution::kTwoD) {
    check_mesh(module, o, *summa::mesh_of(parallel));
    return;
  }
  if (const std::int64_t groups = head_groups(o).groups; groups < parallel.size()) {
    throw ShapeError(tessera::str(
        module,
        ": ",
        groups,
        o.num_key_value_heads > 0 ? " key-value heads" : " attention heads",
        " cannot be divided over ",
        parallel.size(),
        " tensor-parallel ranks, every rank needs at least one; use a "
        "tensor_parallel_degree of at most ",
        groups,
        ", best one that divides it"));
  }
}

void check_hidden(const char* module, const TransformerOptions& o, const at::Tensor& hidden) {
  if (hidden.dim() != 3 || hidden.size(2) != o.hidden_size) {
    throw ShapeError(tessera::str(
        module,
        ": hidden states have sizes ",
        hidden.sizes(),
        "; expected [batch, sequence, ",
        o.hidden_size,
        "] (hidden_size)"));
  }
}

} // namespace tessera::nn
