#include "tessera/nn/managed/manage.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/autograd/node_data.h"
#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/nn/managed/managed_layer.h"
#include "tessera/nn/summa/exchange.h"

namespace tessera::nn::managed {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LayerCall {
  DistributedTransformerLayer layer;
  std::shared_ptr<Buffers> buffers;
};

/// Returns the layer with buffers that are large enough for `x`.
ManagedLayer prepared(const LayerCall& call, const at::Tensor& x) {
  const ManagedLayer layer(call.layer, *call.buffers, Savings());
  const std::int64_t positions = x.numel() / x.size(-1);
  call.buffers->reserve(Buffers::kForward, layer.forward_bytes(positions), x.device());
  call.buffers->reserve(Buffers::kBackward, layer.backward_bytes(positions), x.device());
  call.buffers->reserve(Buffers::kParameter, layer.parameter_bytes(), x.device());
  return layer;
}

class ManagedNode : public torch::autograd::Function<ManagedNode> {
 public:
  /// `parameters` are the layer's own. They are inputs of the node, so that autograd
  /// delivers their gradients.
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::TensorList& /*parameters*/,
      const NodeDataPtr<LayerCall>& call) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x});
    save_node_data(ctx, call);
    // The next layer takes the buffer in which the result lies.
    return prepared(call->value, x).forward(x).clone();
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    require_first_order("a layer with managed memory");
    const auto data = saved_node_data<LayerCall>(ctx);
    const at::Tensor x = ctx->get_saved_variables()[0];
    const std::vector<at::Tensor> parameters = data->value.layer->parameters();
    variable_list result(parameters.size() + 2); // gradients of x, the parameters, the call
    if (!gradients[0].defined()) {
      return result; // zeros would let momentum and weight decay change the parameters
    }
    const auto deliver = [&](at::Tensor& parameter, const at::Tensor& gradient) {
      if (!parameter.requires_grad()) {
        return;
      }
      const at::Tensor sum = addable_gradient(parameter);
      if (sum.defined()) {
        sum.add_(gradient);
        return;
      }
      const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const auto& one) {
        return one.is_same(parameter);
      });
      TESSERA_CHECK(found != parameters.end(), "a gradient of no parameter of the layer");
      result[static_cast<std::size_t>(found - parameters.begin()) + 1] = gradient.clone();
    };
    result[0] = prepared(data->value, x).backward(x, gradients[0], deliver);
    return result;
  }
};

at::Tensor run_managed(
    DistributedTransformerLayerImpl& impl,
    const std::shared_ptr<Buffers>& buffers,
    const at::Tensor& hidden,
    const at::Tensor& mask) {
  if (mask.defined()) {
    throw ShapeError(
        "a transformer layer with managed memory was called with an attention mask; leave the "
        "mask out (causal masks are the layer's own), or leave mesh_memory out");
  }
  const DistributedTransformerLayer layer(
      std::static_pointer_cast<DistributedTransformerLayerImpl>(impl.shared_from_this()));
  const at::Tensor y = ManagedNode::apply(
      hidden, at::TensorList(layer->parameters()), node_data(LayerCall{layer, buffers}));
  if (!at::GradMode::is_enabled()) {
    layer->parallel().mesh->exchange().wait_for_readers(); // the weights may change now
  }
  return y;
}

} // namespace

void manage_layers(torch::nn::Module& root) {
  const auto buffers = std::make_shared<Buffers>();
  int count = 0;
  for (const auto& item : root.named_modules()) {
    const auto impl = std::dynamic_pointer_cast<DistributedTransformerLayerImpl>(item.value());
    if (impl == nullptr) {
      continue;
    }
    try {
      const ManagedLayer possible(DistributedTransformerLayer(impl), *buffers, Savings());
    } catch (const ConfigError& error) {
      throw ConfigError(tessera::str("mesh_memory \"managed\", ", item.key(), ": ", error.what()));
    }
    // A pointer to the layer would make the layer keep itself alive.
    impl->run_by([buffers](
                     DistributedTransformerLayerImpl& layer,
                     const at::Tensor& hidden,
                     const at::Tensor& mask) { return run_managed(layer, buffers, hidden, mask); });
    ++count;
  }
  if (count == 0) {
    throw ConfigError(
        "mesh_memory \"managed\": the model has no transformer layer on the mesh; its layers must "
        "have a distributed form (DistributedTransformerLayer), as GPT's have");
  }
}

} // namespace tessera::nn::managed
