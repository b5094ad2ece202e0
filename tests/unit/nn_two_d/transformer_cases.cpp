// A transformer layer on the mesh against the same written with torch alone.
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/nn/summa/transformer.h"

#include "cases.h"
#include "weights.h"

namespace tessera::nn::two_d::cases {

namespace {

/// Whole parameters under the layer's names, with gradients.
FullTensors make_parameters(const Transformer2DOptions& o, Random& random) {
  FullTensors full;
  const auto add = [&](const std::string& name, at::IntArrayRef sizes) {
    full[name] = random.normal(sizes).mul_(0.3).requires_grad_();
  };
  for (const char* norm : {"ln_1", "ln_2"}) {
    add(std::string(norm) + ".weight", {o.hidden});
    add(std::string(norm) + ".bias", {o.hidden});
  }
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    if (o.out_in()) {
      add(name + ".weight", {out, in});
    } else {
      add(name + ".weight", {in, out});
    }
    add(name + ".bias", {out});
  };
  linear("attn.c_attn", o.hidden, 3 * o.hidden);
  linear("attn.c_proj", o.hidden, o.hidden);
  linear("mlp.c_fc", o.hidden, o.inner);
  linear("mlp.c_proj", o.inner, o.hidden);
  return full;
}

/// The layer in one process.
class Reference {
 public:
  Reference(const Transformer2DOptions& options, const FullTensors& full)
      : o_(options), full_(full) {}

  at::Tensor layer(const at::Tensor& x) const {
    if (o_.pre_norm()) {
      const at::Tensor y = x + attention(norm("ln_1", x));
      return y + mlp(norm("ln_2", y));
    }
    const at::Tensor y = norm("ln_1", x + attention(x));
    return norm("ln_2", y + mlp(y));
  }

 private:
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    return at::layer_norm(
        x, {o_.hidden}, full_.at(name + ".weight"), full_.at(name + ".bias"), o_.eps());
  }
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    const at::Tensor& w = full_.at(name + ".weight");
    return at::matmul(x, o_.out_in() ? w.t() : w) + full_.at(name + ".bias");
  }
  at::Tensor attention(const at::Tensor& x) const {
    const auto b = x.size(0);
    const auto s = x.size(1);
    const auto d = o_.hidden / o_.heads;
    const at::Tensor qkv =
        linear("attn.c_attn", x).view({b, s, 3, o_.heads, d}).permute({2, 0, 3, 1, 4});
    at::Tensor scores =
        at::matmul(qkv[0], qkv[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(d));
    if (o_.causal()) {
      scores = scores.masked_fill(
          at::ones({s, s}, at::kBool).triu(1), -std::numeric_limits<double>::infinity());
    }
    const at::Tensor y =
        at::matmul(at::softmax(scores, -1), qkv[2]).transpose(1, 2).reshape({b, s, o_.hidden});
    return linear("attn.c_proj", y);
  }
  at::Tensor mlp(const at::Tensor& x) const {
    return linear("mlp.c_proj", at::gelu(linear("mlp.c_fc", x), o_.tanh_gelu() ? "tanh" : "none"));
  }

  Transformer2DOptions o_;
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

void check_layer(const MeshPtr& mesh, const Transformer2DOptions& options) {
  Random random(12);
  FullTensors full = make_parameters(options, random);
  const Blocks rows(4, mesh->side());
  const Blocks hidden = options.hidden_blocks(*mesh);
  const at::Tensor x = random.normal({4, 5, options.hidden}).requires_grad_();
  const at::Tensor g = random.normal(x.sizes());
  const Reference reference(options, full);
  const at::Tensor expected = reference.layer(x);
  expected.backward(g);

  const auto part = [&](const at::Tensor& whole) {
    return whole.narrow(0, rows.start(mesh->row()), rows.size(mesh->row()))
        .narrow(-1, hidden.start(mesh->column()), hidden.size(mesh->column()))
        .contiguous();
  };
  auto layer = make_on(mesh, [&] { return TransformerLayer2D(options); });
  load_full(*layer, detached(full));
  const at::Tensor mine = part(x.detach()).requires_grad_();
  const at::Tensor found = layer(mine);
  found.backward(part(g));
  require_close(found.detach(), part(expected.detach()), 1e-5, "layer");
  require_close(mine.grad(), part(x.grad()), 1e-5, "layer, gradient of x");
  require_gradients(*layer, gradients_of(full), 1e-5);
}

void layers(const MeshPtr& mesh) {
  for (const bool pre_norm : {true, false}) {
    for (const bool causal : {true, false}) {
      // 5 heads of width 2 and an inner width of 13: no side divides them.
      Transformer2DOptions options(10, 5);
      options.inner = 13;
      options.pre_norm(pre_norm).causal(causal).tanh_gelu(pre_norm).out_in(causal);
      check_layer(mesh, options);
    }
  }
}

void heads_that_do_not_fit(const MeshPtr& mesh) {
  try {
    Transformer2DOptions(7, 2).hidden_blocks(*mesh);
  } catch (const ShapeError& error) {
    const std::string text = error.what();
    require(text.find("heads") != std::string::npos, text);
    return;
  }
  throw std::runtime_error("2 heads of a width of 7 were accepted");
}

} // namespace

const std::vector<Case>& transformer_cases() {
  static const std::vector<Case> cases = {
      {"transformer_layer", layers},
      {"heads_that_do_not_fit", heads_that_do_not_fit},
  };
  return cases;
}

} // namespace tessera::nn::two_d::cases
