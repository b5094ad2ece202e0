#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/autotune/plan_model.h"

namespace tessera {

namespace autotune {

/// Returns the number of samples in a batch.
/// Throws: ConfigError when its tensors do not have equally many rows, 1 or more.
std::int64_t samples_of(const std::vector<at::Tensor>& batch);

/// Returns the first `samples` rows, or if there are fewer as many repetitions of the first one:
/// planning follows shapes only.
at::Tensor rows_of(const at::Tensor& tensor, std::int64_t samples);

/// Returns the module of a module holder, or the pointer itself.
template <typename Net>
std::shared_ptr<torch::nn::Module> root_of(const Net& net) {
  if constexpr (requires { net.ptr(); }) {
    return net.ptr();
  } else {
    return net;
  }
}

} // namespace autotune

/// Plans how to train a model on a cluster.
///
/// `model` builds it: a function without arguments that returns a module holder (of TESSERA_MODULE,
/// TORCH_MODULE or torch::nn::Sequential) or a std::shared_ptr to a module. It is called several
/// times; no weight is allocated. Modules that it marks (`tensor_parallelism`) may be divided, and
/// children of its outermost Sequential containers may go to other pipeline ranks.
/// `loss` is called as loss(net, tensors...) with a few rows of `batch` and returns the loss.
/// `batch` is the global batch of one step: tensors whose rows are samples. Only its shapes count.
///
///     auto planned = tessera::plan(
///         [] { return Net(); },
///         [](Net& net, at::Tensor x, at::Tensor y) { return at::cross_entropy_loss(net(x), y); },
///         std::make_tuple(x, y),
///         tessera::load_cluster("cluster.json"));
///     tessera::init(planned.config());
///
/// Not collective: each rank calls it with the same arguments and gets the same plan, before or
/// after `init`. Threads: the calling thread.
/// Throws: ConfigError, PlanError as `autotune::plan_model`; ConfigError for a batch without rows.
template <typename Make, typename Loss, typename... Tensors>
Planned plan(
    Make model,
    Loss loss,
    const std::tuple<Tensors...>& batch,
    const Cluster& cluster,
    const PlanOptions& options = {}) {
  const std::int64_t samples =
      std::apply([](const auto&... one) { return autotune::samples_of({one...}); }, batch);
  autotune::ModelSource source;
  source.name = options.name;
  source.build = [&] {
    const auto net = std::make_shared<decltype(model())>(model());
    autotune::BuiltModel built;
    built.root = autotune::root_of(*net);
    built.forward = [&loss, &batch, net](std::int64_t rows) -> std::function<void()> {
      const auto part = std::apply(
          [rows](const auto&... one) { return std::make_tuple(autotune::rows_of(one, rows)...); },
          batch);
      return [&loss, net, part] {
        std::apply([&](const auto&... tensors) { loss(*net, tensors...); }, part);
      };
    };
    return built;
  };
  return autotune::plan_model(source, static_cast<int>(samples), cluster, options);
}

/// Reads a cluster: a file that `probe_cluster` or a person wrote.
/// Throws: ConfigError naming the file, the field, what was found and what to write.
Cluster load_cluster(const std::string& path);

/// Measures the processes of this run as a cluster: computation, links, collectives. Takes some
/// seconds (a minute with `thorough`). Call it before `init`.
/// Collective over all processes. Threads: the main thread.
/// Throws: ConfigError, the same on every rank.
Cluster probe_cluster(bool thorough = false);

} // namespace tessera
