// A transformer layer on the mesh against the same written with torch alone.
#include <cmath>
#include <limits>

#include "tessera/base/error.h"

#include "cases.h"
#include "weights.h"

namespace tessera::nn::summa::cases {

namespace {

/// Whole parameters under the layer's names, with gradients.
FullTensors make_parameters(const TransformerOptions& o, Random& random) {
  FullTensors full;
  const auto add = [&](const std::string& name, at::IntArrayRef sizes) {
    full[name] = random.normal(sizes).mul_(0.3).requires_grad_();
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  };
  for (const char* part : {"attention", "output"}) {
    const std::string norm =
        std::string(part) + (o.pre_layernorm ? ".pre_layernorm" : ".layernorm");
    add(norm + ".weight", {o.hidden_size});
    add(norm + ".bias", {o.hidden_size});
  }
  const std::int64_t joined = o.num_attention_heads * o.attention_head_size;
  linear("attention.query_key_value", o.hidden_size, 3 * joined);
  linear("attention.dense", joined, o.hidden_size);
  linear("output.dense1", o.hidden_size, o.intermediate_size);
  linear("output.dense2", o.intermediate_size, o.hidden_size);
  return full;
}

/// The layer in one process.
class Reference {
 public:
  Reference(const TransformerOptions& options, const FullTensors& full)
      : o_(options), full_(full) {}

  at::Tensor layer(const at::Tensor& x) const {
    if (o_.pre_layernorm) {
      const at::Tensor y = x + attention(norm("attention.pre_layernorm", x));
      return y + mlp(norm("output.pre_layernorm", y));
    }
    const at::Tensor y = norm("attention.layernorm", x + attention(x));
    return norm("output.layernorm", y + mlp(y));
  }

 private:
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    return at::layer_norm(
        x,
        {o_.hidden_size},
        full_.at(name + ".weight"),
        full_.at(name + ".bias"),
        o_.layernorm_epsilon);
  }
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    return at::linear(x, full_.at(name + ".weight"), full_.at(name + ".bias"));
  }
  at::Tensor attention(const at::Tensor& x) const {
    const auto b = x.size(0);
    const auto s = x.size(1);
    const auto d = o_.attention_head_size;
    const at::Tensor qkv = linear("attention.query_key_value", x)
                               .view({b, s, 3, o_.num_attention_heads, d})
                               .permute({2, 0, 3, 1, 4});
    at::Tensor scores =
        at::matmul(qkv[0], qkv[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(d));
    if (o_.causal_mask_size) {
      scores = scores.masked_fill(
          at::ones({s, s}, at::kBool).triu(1), -std::numeric_limits<double>::infinity());
    }
    const at::Tensor y =
        at::matmul(at::softmax(scores, -1), qkv[2]).transpose(1, 2).reshape({b, s, -1});
    return linear("attention.dense", y);
  }
  at::Tensor mlp(const at::Tensor& x) const {
    const char* approximation = o_.activation == "gelu_tanh" ? "tanh" : "none";
    return linear("output.dense2", at::gelu(linear("output.dense1", x), approximation));
  }

  TransformerOptions o_;
  FullTensors full_;
};

FullTensors gradients_of(const FullTensors& full) {
  FullTensors gradients;
  for (const auto& [name, tensor] : full) {
    gradients[name] = tensor.grad();
  }
  return gradients;
}

FullTensors detached(const FullTensors& full) {
  FullTensors values;
  for (const auto& [name, tensor] : full) {
    values[name] = tensor.detach();
  }
  return values;
}

void check_layer(const MeshPtr& mesh, const TransformerOptions& options) {
  Random random(12);
  FullTensors full = make_parameters(options, random);
  const Blocks rows(4, mesh->rows());
  const Blocks hidden(options.hidden_size, mesh->columns());
  const at::Tensor x = random.normal({4, 5, options.hidden_size}).requires_grad_();
  const at::Tensor g = random.normal(x.sizes());
  const Reference reference(options, full);
  const at::Tensor expected = reference.layer(x);
  expected.backward(g);

  const auto part = [&](const at::Tensor& whole) {
    return whole.narrow(0, rows.start(mesh->row()), rows.size(mesh->row()))
        .narrow(-1, hidden.start(mesh->column()), hidden.size(mesh->column()))
        .contiguous();
  };
  auto layer = make_on(mesh, [&] { return layer_on_mesh(options); });
  load_full(*layer, detached(full));
  const at::Tensor mine = part(x.detach()).requires_grad_();
  const at::Tensor found = layer->hidden_states(mine);
  found.backward(part(g));
  require_close(found.detach(), part(expected.detach()), 1e-5, "layer");
  require_close(mine.grad(), part(x.grad()), 1e-5, "layer, gradient of x");
  require_gradients(*layer, gradients_of(full), 1e-5);
}

void layers(const MeshPtr& mesh) {
  for (const bool pre_norm : {true, false}) {
    for (const bool causal : {true, false}) {
      // 5 heads of width 2 and an inner width of 13: no mesh divides them.
      TransformerOptions options = layer_options(10, 5);
      options.intermediate_size = 13;
      options.pre_layernorm = pre_norm;
      options.post_layernorm = !pre_norm;
      options.activation = pre_norm ? "gelu_tanh" : "gelu";
      if (!causal) {
        options.causal_mask_size = TorchOptional<std::int64_t>();
      }
      check_layer(mesh, options);
      options.attention_head_size = 3; // heads wider than the hidden states
      check_layer(mesh, options);
    }
  }
}

void heads_that_do_not_fit(const MeshPtr& mesh) {
  if (mesh->columns() == 1) {
    return;
  }
  try {
    make_on(mesh, [&] { return layer_on_mesh(layer_options(12, mesh->columns() - 1)); });
  } catch (const ShapeError& error) {
    const std::string text = error.what();
    for (const std::string& part :
         {std::string("num_attention_heads is"),
          mesh->shape_text(),
          tessera::str("make it ", mesh->columns(), " or more")}) {
      require(text.find(part) != std::string::npos, text);
    }
    return;
  }
  throw std::runtime_error("fewer heads than columns were accepted");
}

} // namespace

const std::vector<Case>& transformer_cases() {
  static const std::vector<Case> cases = {
      {"transformer_layer", layers},
      {"heads_that_do_not_fit", heads_that_do_not_fit},
  };
  return cases;
}

} // namespace tessera::nn::summa::cases
