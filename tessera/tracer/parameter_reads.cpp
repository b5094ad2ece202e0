#include "tessera/tracer/parameter_reads.h"

#include <algorithm>

#include "tessera/autograd/meta_call.h"
#include "tessera/base/error.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"
#include "tessera/nn/module/operator_call.h"
#include "tessera/nn/module/operator_layer.h"

namespace tessera::tracer {

namespace {

bool holds(const HeldTensor& held, int node) {
  return std::find(held.nodes.begin(), held.nodes.end(), node) != held.nodes.end();
}

} // namespace

ParameterReads::ParameterReads(ModelParts& parts) : parts_(parts) {
  for (std::size_t i = 0; i < parts_.tensors.size(); ++i) {
    const at::Tensor& tensor = parts_.tensors[i].tensor;
    by_tensor_.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(i));
    if (tensor.has_storage()) {
      by_storage_.emplace(tensor.storage().unsafeGetStorageImpl(), static_cast<int>(i));
    }
  }
}

// Finds a tensor by its memory too, because Tensor::data() and detach() make handles without an
// operator that the trace could see.
const HeldTensor* ParameterReads::find(const at::Tensor& tensor) const {
  const auto same = by_tensor_.find(tensor.unsafeGetTensorImpl());
  if (same != by_tensor_.end()) {
    return &parts_.tensors[same->second];
  }
  if (!tensor.has_storage()) {
    return nullptr;
  }
  const auto memory = by_storage_.find(tensor.storage().unsafeGetStorageImpl());
  return memory == by_storage_.end() ? nullptr : &parts_.tensors[memory->second];
}

int ParameterReads::before(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack,
    int current) {
  std::vector<const HeldTensor*> elsewhere;
  for (const c10::IValue& argument : arguments_of(op, stack)) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      const HeldTensor* held = find(tensor);
      if (held != nullptr && !holds(*held, current)) {
        elsewhere.push_back(held);
      }
    });
  }
  if (elsewhere.empty()) {
    return -1;
  }
  const bool layers = std::all_of(elsewhere.begin(), elsewhere.end(), [](const HeldTensor* held) {
    return nn::is_node(*held->module) && nn::is_operator_layer(*held->module);
  });
  if (layers && nn::transposes_parameter(op)) {
    return -1; // the layer's operator is the product that takes the result
  }
  const auto held_by = [&](const at::Tensor& tensor) {
    const HeldTensor* held = find(tensor);
    if (held == nullptr || holds(*held, current)) {
      return nn::Held::kNot;
    }
    if (!nn::is_node(*held->module) || !nn::is_operator_layer(*held->module)) {
      return nn::Held::kElsewhere;
    }
    return held->parameter < 0 ? nn::Held::kBuffer : nn::Held::kParameter;
  };
  if (nn::is_layer_operator(op, stack, held_by)) {
    const int layer = elsewhere.front()->nodes.front();
    for (const HeldTensor* held : elsewhere) {
      if (!holds(*held, layer)) {
        join(layer, *held, op);
      }
    }
    return layer;
  }
  for (const HeldTensor* held : elsewhere) {
    // The step function may read the root's own tensors, since it runs on pp rank 0 as they do.
    if (current < 0 && !holds(*held, 0)) {
      throw ConfigError(
          str("the step function reads ",
              held->parameter < 0 ? "buffer '" : "parameter '",
              held->name,
              "' (operator ",
              operator_name(op),
              ") past its module, which may live on another rank; write penalties and statistics "
              "of parameters with tessera::over_parameters, or read it in the forward of the "
              "module that holds it"));
    }
    join(std::max(current, 0), *held, op);
  }
  return -1;
}

// Lists the tensor as a parameter of the reader too, as if the modules shared it.
void ParameterReads::join(int node, const HeldTensor& tensor, const c10::OperatorHandle& op) {
  auto& modules = parts_.graph.modules;
  int parameter = tensor.parameter;
  if (parameter < 0) { // for a buffer any parameter of its module keeps the two together
    const auto& own = modules.at(tensor.nodes.front()).parameters;
    if (own.empty()) {
      return;
    }
    parameter = own.front();
  }
  auto& own = modules.at(node).parameters;
  if (std::find(own.begin(), own.end(), parameter) == own.end()) {
    own.push_back(parameter);
  }
  const graph::Module& holder = modules.at(tensor.nodes.front());
  const graph::Module& reader = modules.at(node);
  if (holder.path.empty()) { // the model's own tensors are on pp rank 0 anyway
    return;
  }
  const bool known =
      std::any_of(parts_.graph.kept.begin(), parts_.graph.kept.end(), [&](const auto& kept) {
        return kept.path == holder.path;
      });
  if (known) {
    return;
  }
  std::int64_t elements = 0;
  for (const int index : holder.parameters) {
    elements += parts_.graph.parameters.at(index).elements;
  }
  parts_.graph.kept.push_back(
      {holder.path,
       holder.type,
       elements,
       str("stays with ",
           reader.path.empty() ? "the model" : reader.path,
           " (",
           reader.type,
           "), whose forward reads '",
           tensor.name,
           "' in ",
           operator_name(op),
           " past the module's own"),
       str("a call through the holder: as<", holder.type, ">()->forward(...)")});
}

} // namespace tessera::tracer
