#include "tessera/train/distributed_optimizer.h"

#include <set>

#include "tessera/base/error.h"
#include "tessera/optim/clip.h"
#include "tessera/optim/lbfgs.h"
#include "tessera/train/lbfgs_state.h"

namespace tessera {

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer)
    : optimizer_(train::with_own_lbfgs(std::move(optimizer))) {
  train::register_lbfgs_state();
  std::set<const void*> seen;
  for (const auto& group : optimizer_->param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
        throw ConfigError(
            "the optimizer was given a parameter twice; take the model's "
            "parameters(), which lists shared ones once");
      }
      parameters_.push_back(parameter);
    }
  }
}

void DistributedOptimizer::prepare() {
  const auto model = train::session().model.lock();
  if (prepared_ || model == nullptr || !model->partitioned()) {
    return;
  }
  std::set<const void*> elsewhere;
  for (const at::Tensor& parameter : model->all_parameters()) {
    elsewhere.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& [name, tensor] : model->local_parameters()) {
    elsewhere.erase(tensor.unsafeGetTensorImpl());
    names_.emplace(tensor.unsafeGetTensorImpl(), name);
  }
  const auto remote = [&](const at::Tensor& parameter) {
    return elsewhere.contains(parameter.unsafeGetTensorImpl());
  };
  std::erase_if(parameters_, remote);
  for (auto& group : optimizer_->param_groups()) {
    std::erase_if(group.params(), remote);
    for (at::Tensor& parameter : group.params()) {
      const auto name = names_.find(parameter.unsafeGetTensorImpl());
      parameter = masters_.add(parameter);
      if (name != names_.end()) {
        names_.emplace(parameter.unsafeGetTensorImpl(), name->second);
      }
    }
  }
  prepared_ = true;
}

namespace {

void average_gradients() {
  if (const auto model = train::session().model.lock()) {
    model->average_gradients();
  }
}

/// Each rank's numbers, first those of rank 0. Collective over the world.
at::Tensor of_all_ranks(const std::vector<double>& numbers) {
  comm::ProcessGroup& world = train::session().group(Group::kWorld);
  const auto count = static_cast<std::int64_t>(numbers.size());
  at::Tensor all = at::empty({world.size(), count}, at::kDouble);
  world.all_gather(all, at::tensor(numbers, at::kDouble));
  return all;
}

/// A mean over ranks is one over samples: every rank of a pipeline has its
/// replica's loss, and replicas have equally many samples.
at::Tensor mean_of_all_ranks(const at::Tensor& loss) {
  return at::full_like(loss.detach(), of_all_ranks({loss.item<double>()}).mean().item<double>());
}

/// Combined by every rank in the same order, so to the same bits.
std::vector<double> reduce(const std::vector<double>& numbers, comm::ReduceOp op) {
  const train::Session& s = train::session();
  const bool maximum = op == comm::ReduceOp::kMax;
  // Replicas hold the same: a sum takes the first of them.
  const bool counts = maximum || s.layout->coordinates(s.world->rank()).rdp == 0;
  const at::Tensor all = of_all_ranks(counts ? numbers : std::vector<double>(numbers.size()));
  const at::Tensor one = maximum ? all.amax(0) : all.sum(0);
  return {one.data_ptr<double>(), one.data_ptr<double>() + one.numel()};
}

/// While it lives, LBFGS computes over the whole model.
class ComputesOverModel {
 public:
  ComputesOverModel(optim::LBFGS* optimizer, optim::WholeModel model) : optimizer_(optimizer) {
    if (optimizer_ != nullptr) {
      optimizer_->compute_over(std::move(model));
    }
  }
  ~ComputesOverModel() {
    if (optimizer_ != nullptr) {
      optimizer_->compute_over(std::nullopt);
    }
  }
  ComputesOverModel(const ComputesOverModel&) = delete;
  ComputesOverModel& operator=(const ComputesOverModel&) = delete;

 private:
  optim::LBFGS* optimizer_;
};

} // namespace

at::Tensor DistributedOptimizer::step(const Closure& closure) {
  prepare();
  auto* lbfgs = dynamic_cast<optim::LBFGS*>(optimizer_.get());
  const auto counted = [this](const at::Tensor& parameter, const at::Tensor& tensor) {
    if (!names_.contains(parameter.unsafeGetTensorImpl()) &&
        train::session().group(Group::kMP).size() > 1) {
      throw UserError(tessera::str(
          "LBFGS was given a parameter of shape ",
          parameter.sizes(),
          " that is not the model's, so nobody knows which rank counts it; register it in the "
          "model"));
    }
    return counted_once(parameter, tensor);
  };
  const ComputesOverModel scope(lbfgs, {reduce, counted});
  at::Tensor loss;
  if (closure) {
    int calls = 0;
    loss = optimizer_->step([&] {
      if (++calls > 1 && lbfgs == nullptr && train::session().group(Group::kMP).size() > 1) {
        throw UserError(
            "the optimizer calls its closure more than once in a step, and decides from what this "
            "rank holds of the model; use an optimizer that calls it once, tessera::optim::LBFGS, "
            "or pipeline_parallel_degree and tensor_parallel_degree 1");
      }
      return evaluate(closure);
    });
  } else {
    average_gradients();
    masters_.take_gradients();
    optimizer_->step();
  }
  masters_.write_back();
  return loss;
}

/// Gradients of the parameters' present values; the loss of all ranks.
at::Tensor DistributedOptimizer::evaluate(const Closure& closure) {
  masters_.write_back();
  const at::Tensor loss = closure();
  if (!loss.defined() || loss.numel() != 1) {
    throw UserError(
        "optimizer.step got no loss from its closure; return a tensor of one element on every "
        "rank, such as train_step(x, y).reduce_mean()");
  }
  prepare(); // the closure's step may have partitioned the model
  average_gradients();
  masters_.take_gradients();
  return mean_of_all_ranks(loss);
}

void DistributedOptimizer::zero_grad(bool set_to_none) {
  for (at::Tensor& parameter : parameters_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) {
      continue;
    }
    if (set_to_none) {
      gradient = at::Tensor();
    } else {
      gradient = gradient.detach().zero_();
    }
  }
}

std::vector<at::Tensor> DistributedOptimizer::counted_once(
    const at::Tensor& parameter,
    const at::Tensor& tensor) const {
  const auto name = names_.find(parameter.unsafeGetTensorImpl());
  const auto model = train::session().model.lock();
  if (name == names_.end() || model == nullptr) {
    return {tensor}; // a parameter that is not the model's
  }
  return model->state_layout().counted_once(name->second, tensor);
}

double DistributedOptimizer::clip_grad_norm(double max_norm) {
  prepare();
  average_gradients();
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> counted;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      continue;
    }
    gradients.push_back(gradient);
    for (const at::Tensor& part : counted_once(parameter, gradient)) {
      counted.push_back(part);
    }
  }
  return optim::clip_grad_norm(gradients, counted, max_norm, train::session().group(Group::kMP));
}

} // namespace tessera
