#include "tessera/nn/managed/managed_layer.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers/attend.h"
#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/first_row.h"
#include "tessera/nn/summa/product.h"

namespace tessera::nn::managed {

namespace {

const char* gelu_name(const TransformerOptions& options) {
  return options.activation == "gelu_tanh" ? "tanh" : "none";
}

/// Returns an option whose computation is not written out here; empty for none.
std::string unmanaged_option(const TransformerOptions& o) {
  const std::pair<bool, const char*> options[] = {
      {o.num_key_value_heads > 0, "num_key_value_heads"},
      {o.rotary_pct > 0, "rotary_pct"},
      {o.gated_output, "gated_output"},
      {o.parallel_attention_output, "parallel_attention_output"},
      {!o.query_key_value_bias, "query_key_value_bias false"},
      {!o.attention_dense_bias, "attention_dense_bias false"},
      {!o.output_bias, "output_bias false"}};
  for (const auto& [set, name] : options) {
    if (set) {
      return name;
    }
  }
  return "";
}

/// Returns why a layer cannot use managed memory; empty when it can.
std::string obstacle(const DistributedTransformerLayer& layer) {
  const TransformerOptions& o = layer->options;
  if (layer->parallel().mesh == nullptr) {
    return "is on no mesh; write \"tensor_parallel_kind\": \"2d\" with a tensor_parallel_degree of "
           "at least 2";
  }
  if (!o.pre_layernorm || o.post_layernorm || o.rms_layernorm) {
    return "does not norm first with mean and variance (pre_layernorm alone), as GPT's layers do";
  }
  if (o.add_cross_attention) {
    return "has cross attention";
  }
  if (!o.linear_bias) {
    return "has no biases (linear_bias)";
  }
  if (o.fp32_residual_addition) {
    return "adds residuals in f32 (fp32_residual_addition)";
  }
  if (o.activation != "gelu" && o.activation != "gelu_tanh") {
    return tessera::str(
        "has activation \"", o.activation, "\"; \"gelu\" and \"gelu_tanh\" have a managed form");
  }
  const std::string option = unmanaged_option(o);
  if (!option.empty()) {
    return "has the option " + option;
  }
  const double drops =
      std::max({o.attention_dropout_prob, o.hidden_dropout_prob, o.intermediate_dropout_prob});
  if (drops > 0) {
    return tessera::str("drops out with probability ", drops, "; set the model's dropout to 0");
  }
  return "";
}

/// Bytes in a buffer of `positions` rows of each activation, of which this rank has the columns of
/// its mesh column.
struct RowBytes {
  RowBytes(const DistributedTransformerLayer& layer, std::int64_t positions) {
    const int column = layer->parallel().mesh->column();
    const auto& qkv = layer->attention()->query_key_value();
    const auto layout = qkv->layout_on_mesh();
    const auto element = static_cast<std::int64_t>(qkv->weight.element_size());
    const auto of = [&](std::int64_t width) {
      return Buffers::stretch(positions * width, element);
    };
    hidden = of(layout.in.over_columns.size(column));
    inner = of(layer->output()->dense1()->layout_on_mesh().out.size(column));
    heads = of(layout.out.size(column));
    all_heads = of(layout.groups * layout.out.size(column));
  }

  std::int64_t hidden = 0; // the layer's input and result
  std::int64_t inner = 0; // between the two products of the feed-forward part
  std::int64_t heads = 0; // query, key or value
  std::int64_t all_heads = 0; // the three beside each other
};

} // namespace

/// Attention and what its backward needs. It communicates nothing, so torch
/// differentiates it on a graph of its own.
struct Attention {
  at::Tensor leaf; // query, key, value; undefined without a graph
  at::Tensor result;
};

/// What the backward of a layer needs of its forward.
struct ManagedLayer::Saved {
  summa::NormState norm_1;
  at::Tensor normed_1;
  at::Tensor qkv;
  Attention attention;
  at::Tensor attended;
  summa::NormState norm_2;
  at::Tensor normed_2;
  at::Tensor wide; // before the GELU
  at::Tensor gelu;
};

ManagedLayer::ManagedLayer(DistributedTransformerLayer layer, Buffers& buffers, Savings savings)
    : layer_(std::move(layer)), buffers_(buffers), savings_(savings) {
  const std::string reason = obstacle(layer_);
  if (!reason.empty()) {
    throw ConfigError(tessera::str(
        "managed memory has no form for this transformer layer, which ",
        reason,
        "; or run it without managed memory"));
  }
}

std::int64_t ManagedLayer::forward_bytes(std::int64_t positions) const {
  const RowBytes of(layer_, positions);
  // query, key, value; end of attention; inner; end of the layer
  return of.all_heads + of.hidden + of.inner + of.hidden;
}

std::int64_t ManagedLayer::backward_bytes(std::int64_t positions) const {
  const RowBytes of(layer_, positions);
  // of the inputs of the four products
  std::int64_t bytes = of.inner + 2 * of.hidden + of.heads;
  if (!savings_.reuse_outputs) {
    bytes += of.inner + of.all_heads; // of results that are not sums
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

at::Tensor ManagedLayer::attention_of(const at::Tensor& qkv) const {
  const auto& o = layer_->options;
  const std::int64_t width = o.attention_head_size;
  const auto parts = qkv.view({qkv.size(0), qkv.size(1), 3, -1, width}).unbind(2);
  const AttentionRule rule = rule_of(
      o,
      layer_->parallel(),
      /*cross=*/false,
      /*training=*/false,
      qkv.scalar_type(),
      qkv.device());
  return attend_over_heads(layer_->parallel(), parts[0], parts[1], parts[2], {}, rule);
}

at::Tensor ManagedLayer::product(const at::Tensor& x, const DistributedProjection& linear) {
  const summa::LinearLayout layout = linear->layout_on_mesh();
  const auto width = layout.groups * layout.out.size(mesh().column());
  const at::Tensor out =
      buffers_.take(Buffers::kForward, {x.size(0), width}, linear->weight.options());
  summa::multiply(
      mesh(), summa::Form::kAB, x, linear->weight, {layout.in, /*stored_transposed=*/true}, out);
  out.add_(summa::broadcast_from_first_row(mesh(), linear->bias, {width}, out.options()));
  return out;
}

at::Tensor ManagedLayer::input_gradient(
    const at::Tensor& gradient,
    const DistributedProjection& linear) {
  const summa::LinearLayout layout = linear->layout_on_mesh();
  const at::Tensor out = buffers_.take(
      Buffers::kBackward,
      {gradient.size(0), layout.in.over_columns.size(mesh().column())},
      gradient.options());
  summa::multiply(
      mesh(),
      summa::Form::kABt,
      gradient,
      linear->weight,
      {layout.in, /*stored_transposed=*/true},
      out);
  return out;
}

void ManagedLayer::parameter_gradients(
    const at::Tensor& x,
    const at::Tensor& gradient,
    const DistributedProjection& linear,
    const Update& deliver) {
  const summa::LinearLayout layout = linear->layout_on_mesh();
  const at::Tensor of_weight =
      buffers_.take(Buffers::kParameter, linear->weight.sizes(), gradient.options());
  summa::multiply(
      mesh(), summa::Form::kAtB, x, gradient, {layout.in, /*stored_transposed=*/true}, of_weight);
  const at::Tensor of_bias = summa::reduce_to_first_row(mesh(), gradient.sum(0));
  mesh().exchange().wait_for_readers(); // the weight may change now
  at::Tensor weight = linear->weight;
  deliver(weight, of_weight);
  if (of_bias.defined()) {
    const at::Tensor kept = buffers_.take(Buffers::kParameter, of_bias.sizes(), of_bias.options());
    kept.copy_(of_bias);
    at::Tensor bias = linear->bias;
    deliver(bias, kept);
  }
}

at::Tensor ManagedLayer::norm_gradient(
    const summa::NormState& state,
    const at::Tensor& gradient,
    const DistributedLayerNorm& module,
    const Update& deliver) {
  const summa::NormGradients result = summa::norm_backward(module->mesh_norm(), state, gradient);
  if (result.gamma.defined()) {
    for (auto [parameter, value] :
         {std::pair<at::Tensor, at::Tensor>(module->weight, result.gamma),
          std::pair<at::Tensor, at::Tensor>(module->bias, result.beta)}) {
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

at::Tensor ManagedLayer::run(const at::Tensor& x, Saved& saved, bool for_backward) {
  const std::vector<std::int64_t> shape = x.sizes().vec();
  const at::Tensor flat = x.reshape({-1, x.size(-1)});
  const auto& attention = *layer_->attention();
  const auto& output = *layer_->output();
  const auto normed = [](const DistributedLayerNorm& norm, const at::Tensor& t, auto& state) {
    return summa::norm_forward(norm->mesh_norm(), t, norm->weight, norm->bias, state);
  };
  saved.normed_1 = normed(attention.pre_layernorm(), flat, saved.norm_1);
  saved.qkv = product(saved.normed_1, attention.query_key_value());
  const at::Tensor qkv = saved.qkv.view({shape[0], shape[1], -1});
  if (for_backward) {
    const at::AutoGradMode grad(true);
    // The version counter is its own, since later products write other parts of the buffer.
    saved.attention.leaf = qkv.variable_data().requires_grad_();
    saved.attention.result = attention_of(saved.attention.leaf);
    saved.attended = saved.attention.result.detach().view({flat.size(0), -1});
  } else {
    saved.attended = attention_of(qkv).view({flat.size(0), -1});
  }
  const at::Tensor middle = product(saved.attended, attention.dense());
  middle.add_(flat);
  saved.normed_2 = normed(output.pre_layernorm(), middle, saved.norm_2);
  saved.wide = product(saved.normed_2, output.dense1());
  saved.gelu = at::gelu(saved.wide, gelu_name(layer_->options));
  // A backward needs the results of all four products but the last.
  if (for_backward && savings_.skip_products) {
    return {};
  }
  const at::Tensor out = product(saved.gelu, output.dense2());
  return out.add_(middle).view(shape);
}

at::Tensor ManagedLayer::forward(const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  buffers_.reset(Buffers::kForward);
  Saved saved;
  return run(x, saved, /*for_backward=*/false);
}

at::Tensor
ManagedLayer::backward(const at::Tensor& x, const at::Tensor& gradient, const Update& deliver) {
  const at::NoGradGuard no_grad;
  buffers_.reset(Buffers::kForward);
  buffers_.reset(Buffers::kBackward);
  Saved s;
  run(x, s, /*for_backward=*/true);
  const auto& attention = *layer_->attention();
  const auto& output = *layer_->output();
  const at::Tensor g = gradient.reshape({-1, gradient.size(-1)});

  at::Tensor of_gelu = input_gradient(g, output.dense2());
  parameter_gradients(s.gelu, g, output.dense2(), deliver);
  s.gelu = at::Tensor();
  at::Tensor of_wide = host_for(s.wide);
  at::gelu_backward_out(of_wide, of_gelu, s.wide, gelu_name(layer_->options));
  const at::Tensor of_normed_2 = input_gradient(of_wide, output.dense1());
  parameter_gradients(s.normed_2, of_wide, output.dense1(), deliver);
  const at::Tensor of_middle =
      norm_gradient(s.norm_2, of_normed_2, output.pre_layernorm(), deliver);
  of_middle.add_(g);
  s.norm_2 = {};
  s.normed_2 = at::Tensor();

  const at::Tensor of_attended = input_gradient(of_middle, attention.dense());
  parameter_gradients(s.attended, of_middle, attention.dense(), deliver);
  s.attended = at::Tensor();
  at::Tensor of_qkv = host_for(s.qkv);
  const at::Tensor of_leaf = torch::autograd::grad(
      {s.attention.result}, {s.attention.leaf}, {of_attended.view(s.attention.result.sizes())})[0];
  s.attention = {};
  of_qkv.copy_(of_leaf.view(of_qkv.sizes()));
  const at::Tensor of_normed_1 = input_gradient(of_qkv, attention.query_key_value());
  parameter_gradients(s.normed_1, of_qkv, attention.query_key_value(), deliver);
  const at::Tensor of_x = norm_gradient(s.norm_1, of_normed_1, attention.pre_layernorm(), deliver);
  return of_x.add_(of_middle).view(gradient.sizes());
}

} // namespace tessera::nn::managed
