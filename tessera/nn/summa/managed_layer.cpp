#include "tessera/nn/summa/managed_layer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/product.h"
#include "tessera/nn/summa/row0.h"

namespace tessera::nn::two_d {

namespace {

const char* gelu_name(const Transformer2DOptions& options) {
  return options.tanh_gelu() ? "tanh" : "none";
}

at::Tensor attention_of(const Transformer2DOptions& options, const at::Tensor& qkv) {
  const auto parts = qkv.chunk(3, -1);
  return attend_locally(
      parts[0], parts[1], parts[2], options.hidden / options.heads, options.causal(), {}, 0);
}

} // namespace

/// What the backward of a layer needs of its forward.
struct ManagedLayer::Saved {
  NormState norm_1;
  at::Tensor normed_1;
  at::Tensor qkv;
  at::Tensor attended;
  NormState norm_2;
  at::Tensor normed_2;
  at::Tensor wide; // before the GELU
  at::Tensor gelu;
};

ManagedLayer::ManagedLayer(TransformerLayer2D layer, Buffers& buffers, Savings savings)
    : layer_(std::move(layer)),
      buffers_(buffers),
      savings_(savings),
      hidden_(layer_->options().hidden_blocks(*layer_->mesh())),
      inner_(layer_->options().inner_blocks(*layer_->mesh())),
      norm_{layer_->mesh(), hidden_, layer_->options().eps()} {
  if (!layer_->options().pre_norm() || layer_->options().dropout() > 0) {
    throw ConfigError(
        "managed memory needs layers that norm first (pre_norm) and drop out "
        "nothing; run this layer without it");
  }
}

std::int64_t ManagedLayer::forward_bytes(std::int64_t positions) const {
  const int column = layer_->mesh()->column();
  const auto element = static_cast<std::int64_t>(layer_->attn->c_attn->weight.element_size());
  const auto of = [&](std::int64_t width) { return Buffers::stretch(positions * width, element); };
  const std::int64_t hidden = hidden_.size(column);
  // query, key, value; end of attention; inner; end of the layer
  return of(3 * hidden) + of(hidden) + of(inner_.size(column)) + of(hidden);
}

std::int64_t ManagedLayer::backward_bytes(std::int64_t positions) const {
  const int column = layer_->mesh()->column();
  const auto element = static_cast<std::int64_t>(layer_->attn->c_attn->weight.element_size());
  const auto of = [&](std::int64_t width) { return Buffers::stretch(positions * width, element); };
  const std::int64_t hidden = hidden_.size(column);
  const std::int64_t inner = inner_.size(column);
  // of the inputs of the four products
  std::int64_t bytes = of(inner) + 3 * of(hidden);
  if (!savings_.reuse_outputs) {
    bytes += of(inner) + of(3 * hidden); // of results that are not sums
  }
  return bytes;
}

std::int64_t ManagedLayer::parameter_bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& parameter : layer_->parameters()) {
    bytes +=
        Buffers::stretch(parameter.numel(), static_cast<std::int64_t>(parameter.element_size()));
  }
  return bytes;
}

at::Tensor ManagedLayer::product(const at::Tensor& x, Linear2DImpl& linear) {
  const Mesh& mesh = *layer_->mesh();
  const Linear2DOptions& o = linear.options();
  const auto width = o.groups() * o.out.size(mesh.column());
  const at::Tensor out =
      buffers_.take(Buffers::kForward, {x.size(0), width}, linear.weight.options());
  multiply(mesh, Form::kAB, x, linear.weight, {o.in, o.out_in()}, out);
  out.add_(broadcast_from_row0(mesh, linear.bias, {width}, out.options()));
  return out;
}

at::Tensor ManagedLayer::input_gradient(const at::Tensor& gradient, Linear2DImpl& linear) {
  const Mesh& mesh = *layer_->mesh();
  const Linear2DOptions& o = linear.options();
  const at::Tensor out = buffers_.take(
      Buffers::kBackward, {gradient.size(0), o.in.size(mesh.column())}, gradient.options());
  multiply(mesh, Form::kABt, gradient, linear.weight, {o.in, o.out_in()}, out);
  return out;
}

void ManagedLayer::parameter_gradients(
    const at::Tensor& x,
    const at::Tensor& gradient,
    Linear2DImpl& linear,
    const Update& deliver) {
  const Mesh& mesh = *layer_->mesh();
  const Linear2DOptions& o = linear.options();
  const at::Tensor of_weight =
      buffers_.take(Buffers::kParameter, linear.weight.sizes(), gradient.options());
  multiply(mesh, Form::kAtB, x, gradient, {o.in, o.out_in()}, of_weight);
  const at::Tensor of_bias = reduce_to_row0(mesh, gradient.sum(0));
  mesh.exchange().wait_for_readers(); // the weight may change now
  deliver(linear.weight, of_weight);
  if (of_bias.defined()) {
    const at::Tensor kept = buffers_.take(Buffers::kParameter, of_bias.sizes(), of_bias.options());
    kept.copy_(of_bias);
    deliver(linear.bias, kept);
  }
}

at::Tensor ManagedLayer::norm_gradient(
    const Norm& norm,
    const NormState& state,
    const at::Tensor& gradient,
    LayerNorm2DImpl& module,
    const Update& deliver) {
  const NormGradients result = norm_backward(norm, state, gradient);
  if (result.gamma.defined()) {
    for (auto [parameter, value] :
         {std::pair<at::Tensor&, const at::Tensor&>(module.weight, result.gamma),
          std::pair<at::Tensor&, const at::Tensor&>(module.bias, result.beta)}) {
      const at::Tensor kept =
          buffers_.take(Buffers::kParameter, parameter.sizes(), parameter.options());
      kept.copy_(value);
      deliver(parameter, kept);
    }
  }
  return result.x;
}

at::Tensor ManagedLayer::host_for(const at::Tensor& result) {
  return savings_.reuse_outputs
             ? result
             : buffers_.take(Buffers::kBackward, result.sizes(), result.options());
}

at::Tensor ManagedLayer::run(const at::Tensor& x, Saved& saved, bool with_result) {
  const std::vector<std::int64_t> shape = x.sizes().vec();
  const at::Tensor flat = x.reshape({-1, x.size(-1)});
  saved.normed_1 =
      norm_forward(norm_, flat, layer_->ln_1->weight, layer_->ln_1->bias, saved.norm_1);
  saved.qkv = product(saved.normed_1, *layer_->attn->c_attn);
  saved.attended =
      attention_of(layer_->options(), saved.qkv.view({shape[0], shape[1], -1})).view(flat.sizes());
  const at::Tensor middle = product(saved.attended, *layer_->attn->c_proj);
  middle.add_(flat);
  saved.normed_2 =
      norm_forward(norm_, middle, layer_->ln_2->weight, layer_->ln_2->bias, saved.norm_2);
  saved.wide = product(saved.normed_2, *layer_->mlp->c_fc);
  saved.gelu = at::gelu(saved.wide, gelu_name(layer_->options()));
  if (!with_result) {
    return {};
  }
  const at::Tensor out = product(saved.gelu, *layer_->mlp->c_proj);
  return out.add_(middle).view(shape);
}

at::Tensor ManagedLayer::forward(const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  buffers_.reset(Buffers::kForward);
  Saved saved;
  return run(x, saved, true);
}

at::Tensor
ManagedLayer::backward(const at::Tensor& x, const at::Tensor& gradient, const Update& deliver) {
  const at::NoGradGuard no_grad;
  buffers_.reset(Buffers::kForward);
  buffers_.reset(Buffers::kBackward);
  Saved s;
  // Of the four products only the last one's result is not needed below.
  run(x, s, !savings_.skip_products);
  const auto& options = layer_->options();
  const at::Tensor g = gradient.reshape({-1, gradient.size(-1)});

  at::Tensor of_gelu = input_gradient(g, *layer_->mlp->c_proj);
  parameter_gradients(s.gelu, g, *layer_->mlp->c_proj, deliver);
  s.gelu = at::Tensor();
  at::Tensor of_wide = host_for(s.wide);
  at::gelu_backward_out(of_wide, of_gelu, s.wide, gelu_name(options));
  const at::Tensor of_normed_2 = input_gradient(of_wide, *layer_->mlp->c_fc);
  parameter_gradients(s.normed_2, of_wide, *layer_->mlp->c_fc, deliver);
  const at::Tensor of_middle = norm_gradient(norm_, s.norm_2, of_normed_2, *layer_->ln_2, deliver);
  of_middle.add_(g);
  s.norm_2 = {};
  s.normed_2 = at::Tensor();

  const at::Tensor of_attended = input_gradient(of_middle, *layer_->attn->c_proj);
  parameter_gradients(s.attended, of_middle, *layer_->attn->c_proj, deliver);
  s.attended = at::Tensor();
  at::Tensor of_qkv = host_for(s.qkv);
  {
    // Attention is local: torch differentiates it, on a graph of its own.
    const at::AutoGradMode grad(true);
    const at::Tensor leaf = s.qkv.view({x.size(0), x.size(1), -1}).detach().requires_grad_();
    const at::Tensor result = attention_of(options, leaf);
    of_qkv.copy_(
        torch::autograd::grad({result}, {leaf}, {of_attended.view(result.sizes())})[0].view(
            of_qkv.sizes()));
  }
  const at::Tensor of_normed_1 = input_gradient(of_qkv, *layer_->attn->c_attn);
  parameter_gradients(s.normed_1, of_qkv, *layer_->attn->c_attn, deliver);
  const at::Tensor of_x = norm_gradient(norm_, s.norm_1, of_normed_1, *layer_->ln_1, deliver);
  return of_x.add_(of_middle).view(gradient.sizes());
}

} // namespace tessera::nn::two_d
