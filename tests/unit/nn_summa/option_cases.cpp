// Options of the layer on the mesh against the same written with torch.
#include <functional>

#include "tessera/base/error.h"

#include "cases.h"
#include "plain_transformer.h"
#include "weights.h"

namespace tessera::nn::summa::cases {

namespace {

void check_options(
    const MeshPtr& mesh,
    const std::string& name,
    const std::function<void(TransformerOptions&)>& set) {
  Random random(14);
  TransformerOptions options = layer_options(11, 1);
  options.num_attention_heads = 8;
  options.attention_head_size = 4;
  options.intermediate_size = 13;
  set(options);
  testing::PlainLayer plain(options);
  FullTensors full;
  for (const auto& item : plain->named_parameters()) {
    const torch::NoGradGuard no_grad;
    item.value().copy_(random.normal(item.value().sizes()).mul_(0.3));
    full[item.key()] = item.value();
  }
  const Blocks rows(4, mesh->rows());
  const Blocks hidden(options.hidden_size, mesh->columns());
  const at::Tensor x = random.normal({4, 5, options.hidden_size}).requires_grad_();
  const at::Tensor g = random.normal(x.sizes());
  const at::Tensor expected = plain(x, at::Tensor(), at::Tensor(), at::Tensor());
  expected.backward(g);

  const auto part = [&](const at::Tensor& whole) {
    return whole.narrow(0, rows.start(mesh->row()), rows.size(mesh->row()))
        .narrow(-1, hidden.start(mesh->column()), hidden.size(mesh->column()))
        .contiguous();
  };
  auto layer = make_on(mesh, [&] { return layer_on_mesh(options); });
  FullTensors gradients;
  for (auto& [parameter, tensor] : full) {
    gradients[parameter] = tensor.grad();
    tensor = tensor.detach();
  }
  load_full(*layer, full);
  const at::Tensor mine = part(x.detach()).requires_grad_();
  const at::Tensor found = layer->hidden_states(mine);
  found.backward(part(g));
  require_close(found.detach(), part(expected.detach()), 1e-5, name);
  require_close(mine.grad(), part(x.grad()), 1e-5, name + ", gradient of x");
  require_gradients(*layer, gradients, 1e-5);
}

void llama(TransformerOptions& o) {
  o.num_key_value_heads = 4;
  o.rotary_pct = 1;
  o.rms_layernorm = true;
  o.gated_output = true;
  o.activation = "silu";
  o.linear_bias = false;
}

void layers_with_options(const MeshPtr& mesh) {
  check_options(mesh, "llama", llama);
  check_options(mesh, "llama, in blocks", [](TransformerOptions& o) {
    llama(o);
    o.flash_attention = true;
  });
  check_options(mesh, "neox", [](TransformerOptions& o) {
    o.num_key_value_heads = o.num_attention_heads;
    o.rotary_pct = 0.5;
    o.parallel_attention_output = true;
  });
  check_options(mesh, "gptj", [](TransformerOptions& o) {
    o.rotary_pct = 0.5;
    o.rotary_interleaved = true;
    o.parallel_attention_output = true;
    o.shared_layernorm = true;
    o.query_key_value_bias = false;
    o.attention_dense_bias = false;
  });
  check_options(mesh, "window", [](TransformerOptions& o) {
    o.attention_window = 2;
    o.query_key_value_bias = false;
  });
  check_options(mesh, "alibi", [](TransformerOptions& o) {
    o.use_alibi = true;
    o.num_key_value_heads = 4;
    o.layer_idx = 2;
    o.scale_attn_by_layer_idx = true;
    o.query_key_layer_scaling = true;
  });
}

/// Two layers in bf16, beside the same with the same weights in f32.
void layers_in_16_bits(const MeshPtr& mesh) {
  Random random(15);
  TransformerOptions options = layer_options(12, 4);
  testing::PlainLayer plain(options);
  FullTensors full;
  for (const auto& item : plain->named_parameters()) {
    const torch::NoGradGuard no_grad;
    const at::Tensor value = random.normal(item.value().sizes()).mul_(0.3);
    item.value().copy_(value.to(at::kBFloat16));
    full[item.key()] = item.value();
  }
  const at::Tensor x =
      random.normal({4, 5, 12}).mul_(20).to(at::kBFloat16).to(at::kFloat).requires_grad_();
  const at::Tensor g = random.normal(x.sizes());
  const at::Tensor none;
  const at::Tensor expected = plain(plain(x, none, none, none), none, none, none);
  expected.backward(g);
  FullTensors gradients;
  for (auto& [name, tensor] : full) {
    gradients[name] = tensor.grad();
    tensor = tensor.detach();
  }
  const Blocks rows(4, mesh->rows());
  const Blocks hidden(12, mesh->columns());
  const auto part = [&](const at::Tensor& whole) {
    return whole.narrow(0, rows.start(mesh->row()), rows.size(mesh->row()))
        .narrow(-1, hidden.start(mesh->column()), hidden.size(mesh->column()))
        .contiguous();
  };
  std::vector<double> errors;
  for (const bool in_f32 : {false, true}) {
    options.fp32_residual_addition = in_f32;
    auto layer = make_on(mesh, [&] { return layer_on_mesh(options); });
    layer->to(at::kBFloat16);
    load_full(*layer, full);
    const at::Tensor mine = part(x.detach()).to(at::kBFloat16).requires_grad_();
    const at::Tensor found = layer->hidden_states(layer->hidden_states(mine));
    require(
        found.scalar_type() == (in_f32 ? at::kFloat : at::kBFloat16),
        tessera::str("the sum is ", found.scalar_type()));
    found.backward(part(g).to(found.scalar_type()));
    require_close(mine.grad(), part(x.grad()), 3e-2, "16 bits, gradient of x");
    require_gradients(*layer, gradients, 3e-2);
    errors.push_back(
        (found.detach().to(at::kFloat) - part(expected.detach())).norm().item<double>());
  }
  require(
      errors[1] < 0.5 * errors[0],
      tessera::str("the error is ", errors[1], " with sums in f32, ", errors[0], " without"));
}

} // namespace

const std::vector<Case>& option_cases() {
  static const std::vector<Case> cases = {
      {"layer_options", layers_with_options},
      {"layers_in_16_bits", layers_in_16_bits},
  };
  return cases;
}

} // namespace tessera::nn::summa::cases
