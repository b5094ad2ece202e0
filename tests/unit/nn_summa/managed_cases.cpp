// Managed memory: equal to plain autograd with every set of savings, and no
// memory is taken after the first step.
#include "tessera/base/error.h"
#include "tessera/nn/managed/manage.h"
#include "tessera/nn/managed/managed_stack.h"
#include "tessera/nn/summa/exchange.h"

#include "cases.h"
#include "tests/support/unused.h"
#include "weights.h"

namespace tessera::nn::summa::cases {

namespace {

using managed::Buffers;
using managed::ManagedStack;
using managed::Savings;
using managed::Update;

constexpr int kLayers = 3;

struct Stack {
  explicit Stack(const MeshPtr& mesh) : options(layer_options(12, 4)) {
    make_on(mesh, [&] {
      for (int i = 0; i < kLayers; ++i) {
        layers.push_back(layer_on_mesh(options));
      }
      return 0;
    });
    const torch::NoGradGuard no_grad;
    Random random(20 + static_cast<std::uint64_t>(mesh->group().rank()));
    for (const DistributedTransformerLayer& layer : layers) {
      for (at::Tensor& parameter : layer->parameters()) {
        parameter.copy_(random.normal(parameter.sizes()).mul_(0.3));
      }
    }
  }
  TransformerOptions options;
  std::vector<DistributedTransformerLayer> layers;
};

std::vector<at::Tensor> parameters_of(const Stack& stack) {
  std::vector<at::Tensor> all;
  for (const DistributedTransformerLayer& layer : stack.layers) {
    const auto some = layer->parameters();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

at::Tensor input_of(const MeshPtr& mesh, const Stack& stack) {
  Random random(40 + static_cast<std::uint64_t>(mesh->group().rank()));
  const Blocks hidden(stack.options.hidden_size, mesh->columns());
  return random.normal({2, 5, hidden.size(mesh->column())});
}

/// Values after `update(parameter, gradient)` once, by plain autograd.
struct Expected {
  at::Tensor y;
  at::Tensor of_x;
  std::vector<at::Tensor> gradients;
};

Expected plain(const MeshPtr& mesh, Stack& stack, const at::Tensor& gradient) {
  Expected expected;
  const at::Tensor x = input_of(mesh, stack).requires_grad_();
  at::Tensor y = x;
  for (DistributedTransformerLayer& layer : stack.layers) {
    y = layer->hidden_states(y);
  }
  y.backward(gradient);
  expected.y = y.detach();
  expected.of_x = x.grad();
  for (const at::Tensor& parameter : parameters_of(stack)) {
    expected.gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }
  return expected;
}

void every_set_of_savings(const MeshPtr& mesh) {
  for (int set = 0; set < 8; ++set) {
    Stack stack(mesh);
    const at::Tensor x = input_of(mesh, stack);
    const at::Tensor gradient = at::ones_like(x);
    const Expected expected = plain(mesh, stack, gradient);
    std::vector<at::Tensor> before;
    for (const at::Tensor& parameter : parameters_of(stack)) {
      before.push_back(parameter.detach().clone());
    }
    Savings savings;
    savings.reuse_outputs = (set & 1) != 0;
    savings.update_at_once = (set & 2) != 0;
    savings.skip_products = (set & 4) != 0;
    Update update;
    if (savings.update_at_once) {
      update = [](at::Tensor& parameter, const at::Tensor& of) { parameter.sub_(of, 0.5); };
    }
    ManagedStack managed(stack.layers, savings, update);
    const std::string name = tessera::str("savings ", set);
    require_close(managed.forward(x).clone(), expected.y, 1e-5, name + ", result");
    require_close(managed.backward(gradient), expected.of_x, 1e-5, name + ", gradient of x");
    const auto parameters = parameters_of(stack);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor found =
          savings.update_at_once ? (before[i] - parameters[i].detach()) * 2 : parameters[i].grad();
      require_close(found, expected.gradients[i], 1e-5, tessera::str(name, ", gradient ", i));
    }
  }
}

/// Layers that are told to, inside a module, as one autograd node each: two
/// microbatches whose forwards come first, so that buffers are used in between.
void managed_nodes(const MeshPtr& mesh) {
  Stack stack(mesh);
  const at::Tensor x = input_of(mesh, stack);
  const at::Tensor gradient = at::ones_like(x);
  const Expected expected = plain(mesh, stack, gradient);
  torch::nn::ModuleList root;
  for (const DistributedTransformerLayer& layer : stack.layers) {
    root->push_back(layer);
  }
  managed::manage_layers(*root);
  const auto forward = [&](const at::Tensor& input) {
    at::Tensor y = input;
    for (DistributedTransformerLayer& layer : stack.layers) {
      y = layer->hidden_states(y);
    }
    return y;
  };
  const at::Tensor first = x.clone().requires_grad_();
  const at::Tensor second = x.clone().requires_grad_();
  const at::Tensor y_of_first = forward(first);
  const at::Tensor y_of_second = forward(second);
  y_of_first.backward(gradient);
  y_of_second.backward(gradient * 2);
  require_close(y_of_first.detach(), expected.y, 1e-5, "managed, result");
  require_close(y_of_second.detach(), expected.y, 1e-5, "managed, second result");
  require_close(first.grad(), expected.of_x, 1e-5, "managed, gradient of x");
  require_close(second.grad(), expected.of_x * 2, 1e-5, "managed, second gradient of x");
  const auto parameters = parameters_of(stack);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string name = tessera::str("managed, gradient ", i);
    require_close(parameters[i].grad(), expected.gradients[i] * 3, 1e-5, name);
  }
  for (at::Tensor parameter : parameters) {
    parameter.mutable_grad() = at::Tensor();
  }
  testing::unused(forward(x.clone().requires_grad_())).backward();
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) {
      throw std::runtime_error("a parameter got a gradient of a result that nothing used");
    }
  }
  {
    const torch::NoGradGuard no_grad;
    require_close(forward(x), expected.y, 1e-5, "managed, without a graph");
  }
  bool refused = false;
  try {
    stack.layers[0]->hidden_states(x, at::zeros({1, 1, 5, 5}));
  } catch (const ShapeError& error) {
    refused = std::string(error.what()).find("mask") != std::string::npos;
  }
  require(refused, "a mask was left out without a word");
}

void memory_is_taken_once(const MeshPtr& mesh) {
  Stack stack(mesh);
  const at::Tensor x = input_of(mesh, stack);
  ManagedStack managed(stack.layers);
  const auto step = [&] {
    managed.forward(x);
    managed.backward(at::ones_like(x));
  };
  step();
  const int allocations = managed.buffers().allocations();
  const std::int64_t bytes = managed.buffers().bytes();
  const std::int64_t workspace = mesh->exchange().workspace_bytes();
  require(allocations == Buffers::kKinds, "one allocation a buffer");
  for (int i = 0; i < 3; ++i) {
    step();
  }
  // A smaller batch fits into what is there.
  const at::Tensor smaller = x.narrow(0, 0, 1).contiguous();
  managed.forward(smaller);
  managed.backward(at::ones_like(smaller));
  require(
      managed.buffers().allocations() == allocations && managed.buffers().bytes() == bytes &&
          mesh->exchange().workspace_bytes() == workspace,
      "memory grew after the first step");
}

void savings_save(const MeshPtr& mesh) {
  Stack stack(mesh);
  const at::Tensor x = input_of(mesh, stack);
  const auto backward_bytes = [&](bool reuse) {
    Savings savings;
    savings.reuse_outputs = reuse;
    ManagedStack managed(stack.layers, savings);
    managed.forward(x);
    managed.backward(at::ones_like(x));
    return managed.buffers().bytes(Buffers::kBackward);
  };
  require(backward_bytes(true) < backward_bytes(false), "(1) saves no memory");
  const auto sent = [&](bool skip) {
    Savings savings;
    savings.skip_products = skip;
    ManagedStack managed(stack.layers, savings);
    managed.forward(x);
    const auto before =
        mesh->row_group().traffic().bytes.load() + mesh->column_group().traffic().bytes.load();
    managed.backward(at::ones_like(x));
    return mesh->row_group().traffic().bytes.load() + mesh->column_group().traffic().bytes.load() -
           before;
  };
  require(mesh->columns() == 1 || sent(true) < sent(false), "(3) saves no traffic");
}

void what_cannot_be_managed(const MeshPtr& mesh) {
  const auto refused = [&](const std::vector<std::string>& words, const auto& make) {
    std::string text = "accepted what cannot be managed";
    try {
      make();
    } catch (const ConfigError& error) {
      text = error.what();
    }
    for (const std::string& word : words) {
      require(text.find(word) != std::string::npos, tessera::str("'", word, "' is not in: ", text));
    }
  };
  Stack stack(mesh);
  Savings savings;
  savings.update_at_once = true;
  refused({"pass it as `update`"}, [&] { ManagedStack(stack.layers, savings); });
  refused({"set Savings::update_at_once"}, [&] {
    ManagedStack(stack.layers, {}, [](at::Tensor&, const at::Tensor&) {});
  });
  refused({"a stack of no layers"}, [&] { ManagedStack({}, {}); });
  stack.options.pre_layernorm = false;
  stack.options.post_layernorm = true;
  const auto norms_last = make_on(mesh, [&] { return layer_on_mesh(stack.options); });
  refused({"pre_layernorm"}, [&] { ManagedStack({norms_last}); });
  torch::nn::ModuleList root;
  refused({"no transformer layer on the mesh"}, [&] { managed::manage_layers(*root); });
  root->push_back(norms_last);
  refused({"\"managed\", 0: ", "pre_layernorm"}, [&] { managed::manage_layers(*root); });
}

} // namespace

const std::vector<Case>& managed_cases() {
  static const std::vector<Case> cases = {
      {"every_set_of_savings", every_set_of_savings},
      {"managed_nodes", managed_nodes},
      {"memory_is_taken_once", memory_is_taken_once},
      {"savings_save", savings_save},
      {"what_cannot_be_managed", what_cannot_be_managed},
  };
  return cases;
}

} // namespace tessera::nn::summa::cases
