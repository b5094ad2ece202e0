#include "tessera/nn/layers/transformer_options.h"

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

void check_mesh(const char* module, const TransformerOptions& o, const two_d::Mesh& mesh) {
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
  check_columns("num_attention_heads", o.num_attention_heads);
  check_columns("hidden_size", o.hidden_size);
}

} // namespace

std::int64_t heads_here(const TransformerOptions& o, const TensorParallel& parallel) {
  if (parallel.distribution == Distribution::kTwoD) {
    const two_d::Mesh& mesh = *two_d::mesh_of(parallel);
    return even_range(o.num_attention_heads, mesh.columns(), mesh.column()).size();
  }
  return even_range(o.num_attention_heads, parallel.size(), parallel.rank()).size();
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
  if (o.activation != "gelu" && o.activation != "gelu_tanh" && o.activation != "relu") {
    throw ConfigError(tessera::str(
        module,
        ": activation is \"",
        o.activation,
        "\"; write \"gelu\", \"gelu_tanh\" or \"relu\""));
  }
  if (!o.pre_layernorm && !o.post_layernorm) {
    throw ConfigError(tessera::str(
        module,
        ": pre_layernorm and post_layernorm are both false; at least one of "
        "them should be true"));
  }
  if (parallel.distribution == Distribution::kTwoD) {
    check_mesh(module, o, *two_d::mesh_of(parallel));
  } else if (o.num_attention_heads < parallel.size()) {
    throw ShapeError(tessera::str(
        module,
        ": ",
        o.num_attention_heads,
        " attention heads cannot be divided over ",
        parallel.size(),
        " tensor-parallel ranks, every rank needs at least one; use a "
        "tensor_parallel_degree of at most ",
        o.num_attention_heads,
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
