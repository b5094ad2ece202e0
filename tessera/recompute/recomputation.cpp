#include "tessera/recompute/recomputation.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/gradient_order.h"
#include "tessera/autograd/weight_gradient.h"
#include "tessera/autograd/weight_gradient_pass.h"
#include "tessera/base/error.h"
#include "tessera/random/stream.h"
#include "tessera/recompute/before_region.h"
#include "tessera/recompute/keeper.h"
#include "tessera/recompute/kept_products.h"
#include "tessera/recompute/version.h"
#include "tessera/tensor/random_state.h"
#include "tessera/tensor/torch_compat.h"
#include "tessera/tensor/value.h"

namespace tessera::recompute {

namespace {

using torch::autograd::Edge;
using torch::autograd::variable_list;

thread_local const std::string* t_inside = nullptr;

class InsideScope {
 public:
  explicit InsideScope(const std::string& name) : previous_(std::exchange(t_inside, &name)) {}
  ~InsideScope() {
    t_inside = previous_;
  }
  InsideScope(const InsideScope&) = delete;
  InsideScope& operator=(const InsideScope&) = delete;

 private:
  const std::string* previous_;
};

/// The autocast modes of a thread.
struct Autocast {
  bool enabled = cpu_autocast::enabled();
  at::ScalarType dtype = cpu_autocast::dtype();

  void apply() const {
    if (cpu_autocast::enabled() != enabled) {
      cpu_autocast::set_enabled(enabled);
    }
    cpu_autocast::set_dtype(dtype);
  }
};

class AutocastScope {
 public:
  explicit AutocastScope(const Autocast& wanted) {
    wanted.apply();
  }
  ~AutocastScope() {
    if (cpu_autocast::enabled() && !previous_.enabled) {
      at::autocast::clear_cache(); // casts made for this run must not serve another
    }
    previous_.apply();
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  Autocast previous_;
};

/// Autocast keeps the casts of parameters for whoever uses these next. One that was made without
/// history would cost a later use its gradient, and one that belongs to another graph would have
/// that graph's backward run inside of a region's.
class UncachedAutocast {
 public:
  UncachedAutocast() {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~UncachedAutocast() {
    at::autocast::set_autocast_cache_enabled(previous_);
  }
  UncachedAutocast(const UncachedAutocast&) = delete;
  UncachedAutocast& operator=(const UncachedAutocast&) = delete;

 private:
  bool previous_ = at::autocast::is_autocast_cache_enabled();
};

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

bool is_differentiable(const at::Tensor& tensor) {
  return tensor.defined() && torch::autograd::isDifferentiableType(tensor.scalar_type());
}

/// What the first run returned, as far as the second must agree.
struct ResultForm {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  bool operator==(const ResultForm&) const = default;
};

std::vector<ResultForm> forms_of(const c10::IValue& result) {
  std::vector<ResultForm> forms;
  for (const at::Tensor& tensor : tensors_of(result)) {
    forms.push_back(
        tensor.defined() ? ResultForm{tensor.sizes().vec(), tensor.scalar_type()} : ResultForm{});
  }
  return forms;
}

/// Puts buffers that change in its life back to what they were, also for who looks at versions.
/// Some kernels, such as batch norm's, write to a buffer past its version, so the values tell.
class KeepBuffers {
 public:
  explicit KeepBuffers(const std::vector<at::Tensor>& buffers) {
    for (const at::Tensor& buffer : buffers) {
      kept_.push_back(
          {buffer, static_cast<std::uint32_t>(buffer._version()), buffer.detach().clone()});
    }
  }
  ~KeepBuffers() {
    const at::NoGradGuard no_grad;
    for (Kept& kept : kept_) {
      if (!kept.buffer.equal(kept.values)) {
        kept.buffer.variable_data().copy_(kept.values);
      }
      if (kept.buffer._version() != kept.version) {
        kept.buffer.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(kept.version));
      }
    }
  }
  KeepBuffers(const KeepBuffers&) = delete;
  KeepBuffers& operator=(const KeepBuffers&) = delete;

 private:
  struct Kept {
    at::Tensor buffer;
    std::uint32_t version;
    at::Tensor values;
  };
  std::vector<Kept> kept_;
};

/// Stands for the history of a region's arguments in the second run, so that these are no leaves
/// and the region sees what it saw the first time.
struct CaptureGradients : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    captured = std::move(gradients);
    return {};
  }
  variable_list captured;
};

class RecomputeBackward : public torch::autograd::Node, public HiddenLeaves {
 public:
  RecomputeBackward(Region region, c10::IValue args)
      : region_(std::move(region)),
        args_(std::move(args)),
        products_(region_.name, region_.keeps_products, region_.preserve_rng_state) {
    if (region_.preserve_rng_state) {
      random_ = RandomState::capture();
      stream_ = random::captured();
    }
    for (const at::Tensor& tensor : tensors_of(*args_)) {
      const bool needs = tensor.defined() && tensor.requires_grad();
      needs_gradient_.push_back(needs);
      versions_.emplace_back(tensor);
      add_next_edge(needs ? torch::autograd::impl::gradient_edge(tensor) : Edge());
    }
  }

  /// The forward, without anything that a backward would need.
  c10::IValue run_first() {
    const at::NoGradGuard no_grad;
    const UncachedAutocast uncached;
    const InsideScope inside(region_.name);
    c10::IValue result;
    {
      const ProductScope scope(products_, region_.module, ProductScope::Run::kFirst);
      result = region_.run(*args_);
    }
    products_.settle(tensors_of(result), tensors_of(*args_));
    check_arguments("changed one of its arguments in place");
    forms_ = forms_of(result);
    if (const KeeperScope* scope = KeeperScope::current()) {
      std::vector<at::Tensor> tensors = tensors_of(*args_);
      const std::vector<at::Tensor> products = products_.hand_over();
      tensors.insert(tensors.end(), products.begin(), products.end());
      kept_ = scope->keeper().keep(std::move(tensors), scope->microbatch());
      args_ = map_tensors(*args_, [](const at::Tensor&) { return at::Tensor(); });
    }
    return result;
  }

  variable_list apply(variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) {
      throw UserError(
          region_.name +
          " is recomputed in its backward, which cannot have a gradient of its own: call the "
          "backward without create_graph, or take the module's activation checkpointing away");
    }
    if (!args_) {
      throw UserError(
          "a backward reached " + region_.name +
          " a second time; its activations are recomputed from arguments that the first one has "
          "freed: call model.backward once, with all losses, or give torch::autograd::grad "
          "retain_graph");
    }
    if (BeforeRegion* before = BeforeRegionScope::current()) {
      before->region_comes(); // what it lets run may have changed an argument
    }
    check_arguments("has an argument that was changed in place after the call");
    const at::AutoGradMode recorded(true);
    const AutocastScope autocast(autocast_);
    const UncachedAutocast uncached;
    std::optional<KeepRandomState> random;
    std::optional<random::StreamScope> stream;
    if (random_) {
      random.emplace();
      random_->restore();
      stream.emplace(stream_);
    }
    std::optional<WeightGradientScope> in_place;
    if (weights_in_place_) {
      in_place.emplace();
    }
    const KeepBuffers buffers(region_.buffers);
    const InsideScope inside(region_.name);
    const auto capture = std::make_shared<CaptureGradients>();
    const c10::IValue args = arguments_below(capture);
    c10::IValue result;
    bool same_products = true;
    {
      const ProductScope scope(products_, region_.module, ProductScope::Run::kSecond);
      result = region_.run(args);
      same_products = products_.all_given();
    }
    if (forms_of(result) != forms_ || !same_products) {
      throw UserError(
          region_.name +
          (same_products
               ? " returned tensors of other number, shape or dtype when it was recomputed: its "
               : " computed fewer products when it was recomputed: its ") +
          "flow "
          "depends on data that has changed; take its activation checkpointing away");
    }
    return run_backward(result, gradients, capture);
  }

  const std::vector<at::Tensor>& hidden_leaves() const override {
    return region_.parameters;
  }

  void release_variables() override {
    if (WeightGradientPass* pass = WeightGradientPass::current()) {
      pass->freed(held()); // this node runs in that pass
    }
    args_.reset();
    kept_.reset();
    products_.release();
  }

 private:
  void check_arguments(const char* what) const {
    for (const Version& version : versions_) {
      if (version.changed()) {
        throw UserError(
            region_.name + " " + what +
            ", so it cannot be recomputed from them: use the out-of-place form, or take its "
            "activation checkpointing away");
      }
    }
  }

  /// Returns the bytes that the forward left here: none where a keeper has them.
  std::size_t held() const {
    return !args_ || kept_ != nullptr ? 0 : held_bytes(tensors_of(*args_)) + products_.held();
  }

  c10::IValue arguments_below(const std::shared_ptr<CaptureGradients>& capture) {
    std::vector<at::Tensor> kept = kept_ != nullptr ? kept_->get() : std::vector<at::Tensor>();
    if (kept_ != nullptr) {
      const auto of_args = kept.begin() + static_cast<std::ptrdiff_t>(needs_gradient_.size());
      products_.take_back({of_args, kept.end()});
    }
    std::size_t i = 0;
    return map_tensors(*args_, [&](const at::Tensor& argument) {
      const at::Tensor tensor = kept_ != nullptr ? kept.at(i) : argument;
      const bool needs = needs_gradient_[i++];
      if (!tensor.defined()) {
        return tensor;
      }
      at::Tensor detached = tensor.detach();
      if (needs) {
        torch::autograd::set_history(detached, capture);
      }
      return detached;
    });
  }

  variable_list run_backward(
      const c10::IValue& result,
      const variable_list& gradients,
      const std::shared_ptr<CaptureGradients>& capture) const {
    std::vector<at::Tensor> roots;
    variable_list of_roots;
    std::size_t output = 0;
    for (const at::Tensor& tensor : tensors_of(result)) {
      if (!is_differentiable(tensor)) {
        continue;
      }
      const at::Tensor& gradient = gradients.at(output++);
      if (gradient.defined() && tensor.requires_grad()) {
        roots.push_back(tensor);
        of_roots.push_back(gradient);
      }
    }
    if (roots.empty()) {
      return expanded({});
    }
    torch::autograd::edge_list from;
    for (const at::Tensor& root : roots) {
      from.push_back(torch::autograd::impl::gradient_edge(root));
    }
    auto& engine = torch::autograd::Engine::get_default_engine();
    // torch::autograd::grad asks for gradients of chosen tensors and adds to none.
    const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
    if (chosen != nullptr && !chosen->empty()) {
      torch::autograd::edge_list to;
      for (std::uint32_t i = 0; i < capture->num_inputs(); ++i) {
        to.emplace_back(capture, i);
      }
      return expanded(
          to.empty() ? variable_list() : engine.execute(from, of_roots, false, false, false, to));
    }
    std::unique_ptr<WeightGradientPass> pass;
    if (WeightGradientPass* outer = WeightGradientPass::current()) {
      pass = outer->inside_of(roots);
    }
    const bool accumulate = true;
    engine.execute(from, of_roots, /*keep_graph=*/false, /*create_graph=*/false, accumulate, {});
    return expanded(std::move(capture->captured));
  }

  /// Gradients of those arguments that need one -> of all edges.
  variable_list expanded(variable_list of_arguments) const {
    variable_list all(num_outputs());
    std::size_t next = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (needs_gradient_[i] && next < of_arguments.size()) {
        all[i] = std::move(of_arguments[next++]);
      }
    }
    return all;
  }

  Region region_;
  std::optional<c10::IValue> args_; // without tensors where `kept_` has them
  std::unique_ptr<KeptTensors> kept_; // nullptr without a keeper
  KeptProducts products_; // without tensors where `kept_` has them
  std::vector<bool> needs_gradient_; // by tensor of the arguments
  std::vector<Version> versions_;
  std::optional<RandomState> random_;
  std::optional<random::Stream> stream_; // where the first run began
  Autocast autocast_;
  bool weights_in_place_ = WeightGradientScope::active();
  std::vector<ResultForm> forms_;
};

} // namespace

c10::IValue run(Region region, const c10::IValue& args) {
  const std::vector<at::Tensor> given = tensors_of(args);
  const bool needs = region.trains || std::any_of(given.begin(), given.end(), [](const auto& t) {
                       return t.defined() && t.requires_grad();
                     });
  if (!at::GradMode::is_enabled() || t_inside != nullptr || !needs) {
    return region.run(args);
  }
  const auto node = std::make_shared<RecomputeBackward>(std::move(region), args);
  return map_tensors(node->run_first(), [&](const at::Tensor& tensor) {
    if (!is_differentiable(tensor)) {
      return tensor;
    }
    at::Tensor result = tensor.detach();
    torch::autograd::set_history(result, node);
    return result;
  });
}

const std::string* inside() {
  return t_inside;
}

} // namespace tessera::recompute
