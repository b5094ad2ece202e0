#include "tessera/train/distributed_optimizer.h"

#include <algorithm>
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
  given_ = parameters_;
}

std::vector<train::ModelCore*> DistributedOptimizer::models() const {
  std::set<const void*> mine;
  for (const at::Tensor& parameter : given_) {
    mine.insert(parameter.unsafeGetTensorImpl());
  }
  std::vector<train::ModelCore*> list;
  for (train::ModelCore* model : train::session().engine->models()) {
    const auto parameters = model->all_parameters();
    if (std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
          return mine.contains(parameter.unsafeGetTensorImpl());
        })) {
      list.push_back(model);
    }
  }
  return list;
}

train::ModelCore& DistributedOptimizer::model() const {
  const auto list = models();
  if (list.empty()) {
    throw ConfigError(
        "an optimizer's state goes by the model's parameter names, and this optimizer has no "
        "parameter of a live DistributedModel; make the DistributedModel first and give the "
        "optimizer its parameters()");
  }
  if (list.size() > 1) {
    std::string names;
    for (const train::ModelCore* model : list) {
      names += (names.empty() ? "'" : ", '") + model->label() + "'";
    }
    throw CheckpointError(tessera::str(
        "this optimizer has parameters of the models ",
        names,
        ", whose names may be the same; make one optimizer for each model to save or load its "
        "state"));
  }
  return *list.front();
}

void DistributedOptimizer::prepare() {
  const train::StepEngine& engine = *train::session().engine;
  if (prepared_ == engine.revision()) {
    return;
  }
  std::set<const void*> elsewhere;
  std::set<const void*> undecided; // of models that are whole everywhere yet
  bool any = false;
  for (const train::ModelCore* model : engine.models()) {
    any = any || model->partitioned();
    for (const at::Tensor& parameter : model->all_parameters()) {
      (model->partitioned() ? elsewhere : undecided).insert(parameter.unsafeGetTensorImpl());
    }
    if (model->partitioned()) {
      for (const auto& [name, tensor] : model->local_parameters()) {
        elsewhere.erase(tensor.unsafeGetTensorImpl());
      }
    }
  }
  if (!any) {
    return;
  }
  const auto remote = [&](const at::Tensor& parameter) {
    return elsewhere.contains(parameter.unsafeGetTensorImpl());
  };
  std::erase_if(parameters_, remote);
  for (auto& group : optimizer_->param_groups()) {
    std::erase_if(group.params(), remote);
    for (at::Tensor& parameter : group.params()) {
      if (!undecided.contains(parameter.unsafeGetTensorImpl())) {
        parameter = masters_.add(parameter);
      }
    }
  }
  find_owners();
  prepared_ = engine.revision();
}

void DistributedOptimizer::find_owners() {
  models_ = models();
  owners_.clear();
  for (train::ModelCore* model : models_) {
    if (!model->partitioned()) {
      continue;
    }
    for (const auto& [name, tensor] : model->local_parameters()) {
      owners_.emplace(tensor.unsafeGetTensorImpl(), Owner{model, name});
      owners_.emplace(masters_.of(tensor).unsafeGetTensorImpl(), Owner{model, name});
    }
  }
}

namespace {

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
  const timeline::Span span(*train::session().recorder, "optimizer step", "optimizer");
  prepare();
  auto* lbfgs = dynamic_cast<optim::LBFGS*>(optimizer_.get());
  const auto counted = [this](const at::Tensor& parameter, const at::Tensor& tensor) {
    if (!owners_.contains(parameter.unsafeGetTensorImpl()) &&
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

void DistributedOptimizer::average_gradients() {
  for (train::ModelCore* model : models_) {
    model->average_gradients();
  }
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
  const auto owner = owners_.find(parameter.unsafeGetTensorImpl());
  if (owner == owners_.end()) {
    return {tensor}; // a parameter of no model
  }
  return owner->second.model->state_layout().counted_once(owner->second.name, tensor);
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
