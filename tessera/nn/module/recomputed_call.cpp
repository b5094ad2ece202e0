#include "tessera/nn/module/recomputed_call.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/script_class.h"
#include "tessera/recompute/recomputation.h"

namespace tessera::nn {

namespace {

std::atomic<bool> g_recomputes{false};
thread_local const CheckpointedCall* t_call = nullptr;

std::shared_ptr<torch::nn::Module> shared(const torch::nn::Module& module) {
  std::shared_ptr<torch::nn::Module> pointer;
  with_mark(module, [&](Mark* mark) {
    if (mark != nullptr) {
      pointer = mark->module.lock();
    }
  });
  TESSERA_CHECK(pointer != nullptr, "a ", type_name(module), " without a holder is recomputed");
  return pointer;
}

} // namespace

void set_recomputation(const torch::nn::Module& module, const Recomputation& how) {
  with_mark(module, [&](Mark* mark) {
    if (mark == nullptr) {
      throw ConfigError(
          str("set_activation_checkpointing: ",
              type_name(module),
              " is not held by a tessera module holder, so its calls cannot be recomputed; ",
              dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr
                  ? "make it a tessera::nn::Sequential, which takes the same layers"
                  : "declare it with TESSERA_MODULE or tessera::nn",
              ", or flag the module that calls it"));
    }
    mark->recomputation = how;
  });
  expect_recomputation();
}

void drop_recomputation(const torch::nn::Module& module) {
  with_mark(module, [](Mark* mark) {
    if (mark != nullptr) {
      mark->recomputation.reset();
    }
  });
}

std::optional<Recomputation> marked_recomputation(const torch::nn::Module& module) {
  std::optional<Recomputation> how;
  with_mark(module, [&](Mark* mark) {
    if (mark != nullptr) {
      how = mark->recomputation;
    }
  });
  return how;
}

bool recomputes() {
  return g_recomputes.load(std::memory_order_relaxed);
}

void expect_recomputation() {
  g_recomputes = true;
}

CheckpointedCall::CheckpointedCall(
    const torch::nn::Module& module,
    std::optional<Recomputation> how)
    : previous_(t_call),
      // A call of a module that was replaced runs the replacement.
      module_(&replacement_of(const_cast<torch::nn::Module&>(module))),
      how_(std::move(how)) {
  if (how_) {
    expect_recomputation();
    t_call = this;
  }
}

CheckpointedCall::~CheckpointedCall() {
  t_call = previous_;
}

std::optional<Recomputation> CheckpointedCall::of(const torch::nn::Module& module) {
  for (const CheckpointedCall* call = t_call; call != nullptr; call = call->previous_) {
    if (call->module_ == &module) {
      return call->how_;
    }
  }
  return std::nullopt;
}

std::optional<Recomputation> recomputation_of(const torch::nn::Module& module) {
  if (!recomputes() || !at::GradMode::is_enabled() || recompute::inside() != nullptr) {
    return std::nullopt;
  }
  if (const auto of_call = CheckpointedCall::of(module)) {
    return of_call;
  }
  return marked_recomputation(module);
}

c10::IValue run_recomputed(
    const Recomputation& how,
    std::string name,
    const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
    std::function<c10::IValue(const c10::IValue&)> run,
    const c10::IValue& args) {
  recompute::Region region;
  region.name = std::move(name);
  region.run = [modules, run = std::move(run)](const c10::IValue& values) { return run(values); };
  region.preserve_rng_state = how.preserve_rng_state;
  region.keeps_products = how.keeps_products;
  region.module = modules.size() == 1 ? modules.front().get() : nullptr;
  for (const auto& module : modules) {
    for (const at::Tensor& parameter : module->parameters()) {
      if (parameter.requires_grad()) {
        region.parameters.push_back(parameter);
      }
    }
    const auto buffers = module->buffers();
    region.buffers.insert(region.buffers.end(), buffers.begin(), buffers.end());
  }
  region.trains = !region.parameters.empty();
  return recompute::run(std::move(region), args);
}

c10::IValue invoke_module(
    torch::nn::Module& module,
    const c10::IValue& args,
    int first,
    int last,
    Invoker plain) {
  const auto how = recomputation_of(module);
  if (!how || how->group > 0) { // a Sequential makes regions of its children
    return plain(module, args, first, last);
  }
  const auto run = [&module, plain](const c10::IValue& values) {
    return plain(module, values, -1, -1);
  };
  const std::string name = how->path.empty() ? str("a module of type ", type_name(module))
                                             : str("module '", how->path, "'");
  return run_recomputed(*how, name, {shared(module)}, run, args);
}

} // namespace tessera::nn
