#include "tessera/optim/distributed_optimizer.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/process_group.h"
#include "tessera/model/model_core.h"
#include "tessera/model/model_set.h"
#include "tessera/optim/adamw_8bit_codec.h"
#include "tessera/optim/lbfgs.h"
#include "tessera/optim/lbfgs_state.h"
#include "tessera/optim/loss_scaling.h"
#include "tessera/optim/master_weights.h"
#include "tessera/optim/normwise_codec.h"
#include "tessera/optim/numbers_of_ranks.h"
#include "tessera/optim/rounding_places.h"
#include "tessera/optim/state_sharing.h"
#include "tessera/optim/step_seconds.h"
#include "tessera/optim/whole_norms.h"
#include "tessera/state/optimizer_state_key.h"

namespace tessera::optim {

using model::ModelCore;

DistributedOptimizer::DistributedOptimizer(
    std::unique_ptr<torch::optim::Optimizer> optimizer,
    const std::shared_ptr<model::ModelSet>& models,
    const LossScaleOptions& loss_scale)
    : optimizer_(with_own_lbfgs(std::move(optimizer))),
      masters_(std::make_unique<MasterWeights>()),
      sharing_(std::make_unique<StateSharing>()),
      step_seconds_(std::make_unique<StepSeconds>()),
      model_set_(models) {
  register_lbfgs_state();
  register_adamw_8bit_state();
  register_normwise_states();
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
  given_set_ = seen;
  known_ = seen;
  if (context().config.shard_optimizer_state) {
    if (dynamic_cast<LBFGS*>(optimizer_.get()) != nullptr) {
      throw ConfigError(
          "shard_optimizer_state gives each parameter's state to one rank, but LBFGS decides from "
          "the state of the whole model; leave shard_optimizer_state out, or take an optimizer "
          "that updates each parameter by itself");
    }
    sharing_ = std::make_unique<StateSharing>(given_);
    sharing_->join(this->models());
  }
  begin_loss_scaling(loss_scale);
  models->know(place());
}

PlaceOfOptimizer::PlaceOfOptimizer()
    : place_(std::make_shared<DistributedOptimizer*>(static_cast<DistributedOptimizer*>(this))) {}

PlaceOfOptimizer::PlaceOfOptimizer(PlaceOfOptimizer&& other) noexcept
    : place_(std::move(other.place_)) {
  *place_ = static_cast<DistributedOptimizer*>(this);
}

DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;
DistributedOptimizer::~DistributedOptimizer() = default;

model::ModelSet& DistributedOptimizer::model_set() const {
  const auto held = model_set_.lock();
  if (held == nullptr) {
    throw ConfigError("an optimizer is used after tessera::shutdown");
  }
  return *held;
}

Context& DistributedOptimizer::context() const {
  return model_set().context();
}

std::vector<ModelCore*> DistributedOptimizer::models() const {
  std::vector<ModelCore*> list;
  for (ModelCore* model : model_set().models()) {
    const auto parameters = model->all_parameters();
    if (others_models_.contains(model->number()) ||
        std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
          return given_set_.contains(parameter.unsafeGetTensorImpl());
        })) {
      list.push_back(model);
    }
  }
  return list;
}

ModelCore& DistributedOptimizer::model() const {
  const auto list = models();
  if (list.empty()) {
    throw ConfigError(
        "an optimizer's state goes by the model's parameter names, and this optimizer has no "
        "parameter of a live DistributedModel; make the DistributedModel first and give the "
        "optimizer its parameters()");
  }
  if (list.size() > 1) {
    std::string names;
    for (const ModelCore* model : list) {
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

/// It has let go of what other ranks held, so it would update a part of the module.
void DistributedOptimizer::check_none_released(const model::ModelSet& all) const {
  for (const auto& [number, label] : updated_models_) {
    if (all.was_released(number)) {
      throw UserError(tessera::str(
          "the optimizer has updated the model '",
          label,
          "', which is an ordinary module since its cpu(); make an optimizer anew"));
    }
  }
}

// A script adds groups between steps (`optimizer.inner().add_param_group(...)`), such as the layers
// that it thaws.
void DistributedOptimizer::take_new_parameters() {
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const void* address = parameter.unsafeGetTensorImpl();
      if (known_.contains(address)) {
        continue;
      }
      if (context().config.shard_optimizer_state) {
        throw ConfigError(
            "a parameter group was added to an optimizer whose state shard_optimizer_state has "
            "shared out; give the optimizer all groups when it is made (with requires_grad false a "
            "parameter stays as it is), or make a new optimizer");
      }
      parameters_.push_back(parameter);
      given_.push_back(parameter);
      given_set_.insert(address);
      known_.insert(address);
      prepared_ = -1;
      numbered_ = -1;
    }
  }
}

// Nobody averages the gradient of another tensor, so replicas would drift apart, and a checkpoint
// would not hold it.
void DistributedOptimizer::check_parameters_belong(const std::set<const void*>& of_models) {
  if (context().world->size() == 1) {
    return;
  }
  for (const at::Tensor& parameter : given_) {
    if (of_models.contains(parameter.unsafeGetTensorImpl())) {
      continue;
    }
    model::refuse_replaced(parameter);
    if (parameter.requires_grad() && !std::exchange(warned_of_others_, true)) {
      log::warning(model::why_no_parameter(parameter));
    }
  }
}

namespace {

// Adagrad makes its states when it is made, for the tensors that it was given then.
void carry_first_state(
    torch::optim::Optimizer& optimizer,
    const at::Tensor& given,
    const at::Tensor& stepped) {
  auto& states = optimizer.state();
  const auto found = states.find(state::optimizer_state_key(given));
  const auto* first = found == states.end()
                          ? nullptr
                          : dynamic_cast<torch::optim::AdagradParamState*>(found->second.get());
  if (first == nullptr || given.is_same(stepped)) {
    return;
  }
  auto state = std::make_unique<torch::optim::AdagradParamState>();
  state->step(first->step());
  const double sum = first->sum().numel() > 0 ? first->sum().flatten()[0].item<double>() : 0;
  state->sum(at::full_like(stepped.detach(), sum));
  states.erase(found);
  states[state::optimizer_state_key(stepped)] = std::move(state);
}

} // namespace

/// Returns the same on all ranks, whether or not they have got parameters since.
bool DistributedOptimizer::must_agree_on_models() const {
  return context().config.tensor_parallel_degree > 1 &&
         agreed_on_ != std::pair(model_set().revision(), optimizer_->param_groups().size());
}

/// A tensor-parallel rank may hold no parameter of an optimizer, such as one of biases alone. It
/// takes part in what the others do for the model all the same. Collective over the world.
void DistributedOptimizer::agree_on_models() {
  if (!must_agree_on_models()) {
    return;
  }
  agreed_on_ = std::pair(model_set().revision(), optimizer_->param_groups().size());
  others_models_.clear();
  const std::vector<ModelCore*>& all = model_set().models();
  const std::vector<ModelCore*> own = models();
  at::Tensor flags = at::zeros({static_cast<std::int64_t>(all.size())}, at::kByte);
  auto* flag = flags.data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < all.size(); ++i) {
    flag[i] = std::find(own.begin(), own.end(), all[i]) == own.end() ? 0 : 1;
  }
  context().group(Group::kWorld).all_reduce(flags, comm::ReduceOp::kMax);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (flag[i] != 0) {
      others_models_.insert(all[i]->number());
    }
  }
}

void DistributedOptimizer::prepare() {
  take_new_parameters();
  masters_->follow_parameters();
  const model::ModelSet& all = model_set();
  if (prepared_ == all.revision() && !must_agree_on_models()) {
    return;
  }
  check_none_released(all);
  std::set<const void*> elsewhere;
  std::set<const void*> undecided; // of models that are whole everywhere yet
  bool any = false;
  std::set<const void*> of_models;
  for (const ModelCore* model : all.models()) {
    any = any || model->partitioned();
    for (const at::Tensor& parameter : model->all_parameters()) {
      of_models.insert(parameter.unsafeGetTensorImpl());
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
  check_parameters_belong(of_models);
  agree_on_models();
  const auto remote = [&](const at::Tensor& parameter) {
    return elsewhere.contains(parameter.unsafeGetTensorImpl());
  };
  std::erase_if(parameters_, remote);
  models_ = models();
  for (const ModelCore* model : models_) {
    updated_models_.emplace(model->number(), model->label());
  }
  sharing_->join(models_);
  for (auto& group : optimizer_->param_groups()) {
    std::erase_if(group.params(), [&](const at::Tensor& parameter) {
      return remote(parameter) || sharing_->is_elsewhere(models_, parameter);
    });
    for (at::Tensor& parameter : group.params()) {
      if (masters_->is_master(parameter) || undecided.contains(parameter.unsafeGetTensorImpl())) {
        continue; // taken when the set of models was another, or to be taken later
      }
      const at::Tensor part = own_part(parameter);
      const bool alone = rounds_itself(*optimizer_, group, part);
      const at::Tensor master = alone ? part : masters_->add(part);
      check_has_master(part, master);
      carry_first_state(*optimizer_, parameter, master);
      parameter = master;
    }
    for (const at::Tensor& parameter : group.params()) {
      known_.insert(parameter.unsafeGetTensorImpl());
    }
  }
  tell_places(*optimizer_, models_, static_cast<std::uint64_t>(context().config.seed));
  find_owners();
  prepared_ = all.revision();
}

void DistributedOptimizer::find_owners() {
  owners_.clear();
  for (ModelCore* model : models_) {
    if (!model->partitioned()) {
      continue;
    }
    for (const auto& [name, tensor] : model->local_parameters()) {
      owners_.emplace(tensor.unsafeGetTensorImpl(), Owner{model, name, tensor});
      owners_.emplace(updated_tensor(tensor).unsafeGetTensorImpl(), Owner{model, name, tensor});
    }
  }
}

namespace {

/// A mean over ranks is one over samples: every rank of a pipeline has its replica's loss, which
/// counts by the replica's samples. `part`: what its gradients were multiplied by on top of that
/// (Join), so that what an optimizer decides by is the loss of the gradients it has.
at::Tensor mean_of_all_ranks(const Context& context, const at::Tensor& loss, double part) {
  const double own = part == 0 ? 0 : loss.item<double>() * context.data_weight() * part;
  const at::Tensor all = of_all_ranks(context, {own});
  return at::full_like(loss.detach(), all.mean().item<double>());
}

/// Combined by every rank in the same order, so to the same bits.
std::vector<double>
reduce(const Context& context, const std::vector<double>& numbers, comm::ReduceOp op) {
  const bool maximum = op == comm::ReduceOp::kMax;
  // Replicas hold the same: a sum takes the first of them.
  const bool counts = maximum || context.coordinates().rdp == 0;
  const at::Tensor all =
      of_all_ranks(context, counts ? numbers : std::vector<double>(numbers.size()));
  const at::Tensor one = maximum ? all.amax(0) : all.sum(0);
  return {one.data_ptr<double>(), one.data_ptr<double>() + one.numel()};
}

/// Leaves an optimizer's step from inside of its closure.
struct Overflowed {
  at::Tensor loss;
};

/// Of an optimizer that is a script's own: what it does between two calls of its closure nobody
/// here knows.
void check_may_evaluate_again(bool whole_here, bool scales_losses) {
  if (scales_losses) {
    throw UserError(
        "the optimizer calls its closure more than once in a step, but with fp16 a step whose "
        "gradients overflow is left out, and the parameters have moved since the first call; write "
        "\"bf16\": true in place of fp16, or use an optimizer that calls it once");
  }
  if (!whole_here) {
    throw UserError(
        "the optimizer calls its closure more than once in a step, and decides from what this rank "
        "holds of the model; use an optimizer that calls it once, or pipeline_parallel_degree, "
        "tensor_parallel_degree and sharded_data_parallel_degree 1 without shard_optimizer_state; "
        "tessera::optim::LBFGS works with pipeline_parallel_degree and tensor_parallel_degree");
  }
}

/// While it lives, LBFGS computes over the whole model.
class ComputesOverModel {
 public:
  ComputesOverModel(LBFGS* optimizer, WholeModel model) : optimizer_(optimizer) {
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
  LBFGS* optimizer_;
};

/// While it lives, an optimizer that needs norms of whole parameters gets them.
class TakesNorms {
 public:
  TakesNorms(NeedsNorms* optimizer, WholeNorms norms) : optimizer_(optimizer) {
    if (optimizer_ != nullptr) {
      optimizer_->take_norms_from(std::move(norms));
    }
  }
  ~TakesNorms() {
    if (optimizer_ != nullptr) {
      optimizer_->take_norms_from(nullptr);
    }
  }
  TakesNorms(const TakesNorms&) = delete;
  TakesNorms& operator=(const TakesNorms&) = delete;

 private:
  NeedsNorms* optimizer_;
};

} // namespace

at::Tensor DistributedOptimizer::step(const Closure& closure) {
  const Context& context = this->context();
  model_set().check_behind_step("optimizer.step()");
  ++updates_;
  const timeline::Span span(*context.recorder, "optimizer step", "optimizer");
  prepare();
  const bool whole_here =
      context.group(Group::kMP).size() == 1 && !sharing_->in_use(models_) && !has_shards();
  at::Tensor loss = sharing_->update(
      context, models_, [&] { return update_shards([&] { return update(closure, whole_here); }); });
  if (context.group(Group::kMP).size() > 1 || sharing_->in_use(models_)) {
    warn_of_own_class();
  }
  step_seconds_->updated(context.world->rank());
  return loss;
}

at::Tensor DistributedOptimizer::update(const Closure& closure, bool whole_here) {
  const Context& context = this->context();
  auto* lbfgs = dynamic_cast<LBFGS*>(optimizer_.get());
  if (lbfgs != nullptr && has_shards()) {
    throw ConfigError(
        "LBFGS writes parameters between its evaluations and computes over all of them, which "
        "sharded_data_parallel_degree greater than 1 does not offer; use another optimizer, or "
        "degree 1");
  }
  const auto counted = [this, whole_here](const at::Tensor& parameter, const at::Tensor& tensor) {
    if (!whole_here && !owners_.contains(parameter.unsafeGetTensorImpl())) {
      throw UserError(tessera::str(
          "LBFGS was given a parameter of shape ",
          parameter.sizes(),
          " that is not the model's, so nobody knows which rank counts it; register it in the "
          "model"));
    }
    return counted_once(parameter, tensor);
  };
  const auto over_ranks = [&context](const std::vector<double>& numbers, comm::ReduceOp op) {
    return reduce(context, numbers, op);
  };
  const ComputesOverModel scope(lbfgs, {over_ranks, counted});
  const TakesNorms norms(dynamic_cast<NeedsNorms*>(optimizer_.get()), norms_for_update(whole_here));
  at::Tensor loss;
  bool overflow = false;
  if (closure) {
    int calls = 0;
    const auto once = [&] {
      if (++calls > 1 && lbfgs == nullptr) {
        check_may_evaluate_again(whole_here, scaling_ != nullptr);
      }
      return evaluate(closure);
    };
    try {
      loss = optimizer_->step(once);
    } catch (const Overflowed& caught) {
      loss = caught.loss;
      overflow = true;
    }
  } else {
    overflow = !take_gradients();
    if (!overflow) {
      optimizer_->step();
    }
  }
  end_scaled_step(overflow);
  masters_->write_back();
  return loss;
}

void DistributedOptimizer::average_gradients() {
  for (ModelCore* model : models_) {
    model->average_gradients();
  }
}

/// Gradients of the parameters' present values; the loss of all ranks.
at::Tensor DistributedOptimizer::evaluate(const Closure& closure) {
  masters_->write_back();
  const at::Tensor loss = closure();
  if (!loss.defined() || loss.numel() != 1) {
    throw UserError(
        "optimizer.step got no loss from its closure; return a tensor of one element on every "
        "rank, such as train_step(x, y).reduce_mean()");
  }
  prepare(); // the closure's step may have partitioned the model
  const bool finite = take_gradients();
  const double part = models_.empty() ? 1 : models_.front()->replica_part().weight;
  const at::Tensor mean = mean_of_all_ranks(context(), loss, part);
  if (!finite) {
    throw Overflowed{mean};
  }
  return mean;
}

void DistributedOptimizer::zero_grad(bool set_to_none) {
  // Those of the last update may be gone, or others may have come.
  take_new_parameters();
  const auto held = model_set_.lock();
  if (held != nullptr) {
    held->check_may_zero("optimizer.zero_grad()");
  }
  const std::vector<ModelCore*> live = held == nullptr ? std::vector<ModelCore*>() : this->models();
  for (const ModelCore* model : live) {
    if (model->gradients() != nullptr) {
      model->gradients()->forget_averages(&given_set_, set_to_none);
    }
  }
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
  for (const ModelCore* model : live) {
    if (model->shards() != nullptr) {
      model->shards()->settle();
    }
  }
}

at::Tensor DistributedOptimizer::updated_tensor(const at::Tensor& parameter) const {
  return masters_->of(own_part(parameter));
}

NamedTensors DistributedOptimizer::updated_tensors() const {
  NamedTensors tensors = model().local_parameters();
  for (auto& [name, tensor] : tensors) {
    tensor = updated_tensor(tensor);
  }
  return tensors;
}

void DistributedOptimizer::refresh_parameters() {
  masters_->write_back();
}

} // namespace tessera::optim
