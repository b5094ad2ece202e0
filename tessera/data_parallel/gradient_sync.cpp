#include "tessera/data_parallel/gradient_sync.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/context/agreement.h"

namespace tessera::data_parallel {

GradientSync::GradientSync(
    Context& context,
    NamedTensors equal,
    NamedTensors scaled,
    const Options& options)
    : context_(context),
      world_(context.world),
      all_used_(options.reducer.all_used),
      passes_per_step_(options.backward_passes_per_step) {
  if (options.reducer.f32_sums) {
    std::vector<at::Tensor> all;
    for (const NamedTensors* list : {&equal, &scaled}) {
      for (const auto& [name, tensor] : *list) {
        all.push_back(tensor);
      }
    }
    f32_gradients_ = std::make_unique<F32Gradients>(std::move(all));
  }
  if (context_.group(Group::kDP).size() == 1) {
    return;
  }
  GradientReducer::Options reducer = options.reducer;
  reducer.weight = context_.data_weight();
  add(group_for(Group::kDP, options), *context_.control, std::move(equal), reducer);
  if (context_.group(Group::kTP).size() == 1) {
    return;
  }
  reducer.scale = 1.0 / context_.data_size();
  add(group_for(Group::kRDP, options), *context_.rdp_control, std::move(scaled), reducer);
}

void GradientSync::add(
    comm::ProcessGroup& group,
    comm::ProcessGroup& control,
    NamedTensors parameters,
    const GradientReducer::Options& options) {
  state_owners_.push_back(std::make_unique<StateOwners>(group, control, parameters));
  reducers_.push_back(
      std::make_unique<GradientReducer>(*world_, group, control, std::move(parameters), options));
  parts_.push_back(reducers_.back().get());
}

void GradientSync::set_rows(std::int64_t rows) {
  if (has_replicas()) {
    reducers_.front()->set_rows(rows);
  }
}

bool GradientSync::rows_differ() const {
  return has_replicas() && reducers_.front()->rows_differ();
}

void GradientSync::set_agreed(std::uint64_t number) {
  if (has_replicas()) {
    reducers_.front()->set_agreed(number);
  }
}

bool GradientSync::agreed_differs() const {
  return has_replicas() && reducers_.front()->agreed_differs();
}

void GradientSync::set_hook(const CommHook& hook) {
  for (const auto& reducer : reducers_) {
    reducer->set_hook(hook);
  }
  has_hook_ = hook != nullptr;
}

std::optional<std::string> GradientSync::take_problem() {
  std::optional<std::string> first;
  for (const auto& reducer : reducers_) {
    const auto problem = reducer->take_problem();
    first = first ? first : problem;
  }
  return first;
}

void GradientSync::share_state(const ParameterSet& parameters) {
  for (std::size_t i = 0; i < reducers_.size(); ++i) {
    state_owners_[i]->share(parameters);
    reducers_[i]->set_owners(state_owners_[i]->owners());
  }
}

void GradientSync::forget_averages(const ParameterSet* of, bool set_to_none) {
  for (GradientPart* part : parts_) {
    part->forget_averages(of, set_to_none);
  }
}

void GradientSync::add(SettlingGradientPart& part) {
  TESSERA_CHECK(has_replicas());
  parts_.push_back(&part);
  added_.push_back(&part);
}

comm::ProcessGroup& GradientSync::group_for(Group kind, const Options& options) {
  comm::ProcessGroup& shared = context_.group(kind);
  if (!options.own_groups) {
    return shared;
  }
  own_groups_.push_back(world_->new_group(
      str(topology::name_of(kind), " of model ", *options.own_groups), shared.ranks()));
  return *own_groups_.back();
}

void GradientSync::begin() {
  if (f32_gradients_ != nullptr) {
    f32_gradients_->find_trainable(); // its hooks come before the reducers'
  }
  for (GradientPart* part : parts_) {
    part->begin(passes_ + 1 >= passes_per_step_);
  }
}

bool GradientSync::had_backward() const {
  return std::any_of(
      parts_.begin(), parts_.end(), [](const GradientPart* part) { return part->had_backward(); });
}

void GradientSync::expect_backward() {
  for (GradientPart* part : parts_) {
    part->expect_backward();
  }
}

// Every rank of the DP_GROUP learns of a failure from the first reducer; the second one runs all
// the same, so that no collective is left half done.
void GradientSync::finish(const std::optional<std::string>& failure, std::int64_t step) {
  if (!has_replicas()) {
    return;
  }
  // A step that failed leaves gradients that only zero_grad mends.
  const int passes = std::exchange(passes_, 0);
  const bool averages = at::GradMode::is_enabled() && passes + 1 >= passes_per_step_;
  const timeline::Span span(
      *context_.recorder,
      averages ? "gradient averaging" : "agreement of replicas",
      "comm",
      static_cast<int>(step));
  std::optional<std::string> problem = failure;
  std::optional<UserError> thrown;
  bool backward = false;
  for (GradientPart* part : parts_) {
    try {
      backward = part->finish(problem) || backward;
    } catch (const UserError& error) {
      thrown = thrown.value_or(error);
      problem = problem.value_or(error.what());
    }
  }
  if (thrown) {
    throw UserError(*thrown);
  }
  passes_ = backward ? (passes + 1) % passes_per_step_ : passes;
}

void GradientSync::average_rest() {
  if (!has_replicas()) {
    return;
  }
  at::Tensor flags = at::zeros({3}, at::kByte);
  auto* flag = flags.data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < reducers_.size(); ++i) {
    flag[i] = reducers_[i]->unaveraged_gradient().empty() ? 0 : 1;
  }
  if (reducers_.size() == 1) {
    context_.control->all_reduce(flags, comm::ReduceOp::kMax);
  } else {
    // What one part of a distributed parameter cannot tell is an error of all its ranks.
    const auto refused = reducers_[1]->refused_gradient();
    flag[2] = refused ? 1 : 0;
    comm::ProcessGroup& everybody = context_.group(Group::kWorld);
    everybody.all_reduce(flags, comm::ReduceOp::kMax);
    if (flag[2] != 0) {
      throw_first_problem<UserError>(*world_, everybody, refused);
    }
  }
  for (std::size_t i = 0; i < reducers_.size(); ++i) {
    if (flag[i] != 0) {
      reducers_[i]->average_rest();
    }
  }
  for (SettlingGradientPart* part : added_) {
    part->average_rest();
  }
}

} // namespace tessera::data_parallel
