// ModelCore's part of tensor parallelism: distributed modules in the place of
// marked ones, their weights, the groups over which gradients are averaged.
#include <algorithm>
#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/runtime/random_state.h"
#include "tessera/train/model_core.h"

namespace tessera::train {

namespace {

// The script's random numbers go on as if nothing had been made here.
std::shared_ptr<nn::DistributedModule> make_beside(
    const torch::nn::Module& original,
    const nn::Make& make) {
  const auto script = runtime::RandomState::capture();
  std::shared_ptr<nn::DistributedModule> made;
  try {
    const tracer::DelayedInitScope delayed(tracer::has_delayed(original));
    made = make();
  } catch (...) {
    script.restore();
    throw;
  }
  script.restore();
  return made;
}

bool is_delayed(const nn::ReplacedModule& replaced) {
  for (const auto& [name, tensor] : replaced.tensors) {
    if (tracer::is_delayed(tensor)) {
      return true;
    }
  }
  return false;
}

} // namespace

void ModelCore::replace_modules() {
  Session& s = session();
  replacements_.root = root_;
  if (s.group(Group::kTP).size() > 1) {
    replacements_ = nn::replace_marked(root_, make_beside);
    root_ = replacements_.root;
    if (s.world->rank() == 0) {
      for (const std::string& line : nn::text_of(replacements_)) {
        log::info("tensor parallelism: " + line);
      }
      if (replacements_.replaced.empty()) {
        log::warning(
            str("tensor_parallel_degree is ",
                s.group(Group::kTP).size(),
                ", but no module was replaced; mark modules with tessera::tensor_parallelism"));
      }
    }
  }
  nn::keep_parts_together(*root_);
  layout_ = std::make_unique<StateLayout>(*root_, replacements_.replaced);
  for (nn::ReplacedModule& replaced : replacements_.replaced) {
    if (!is_delayed(replaced)) {
      nn::take_over(replaced);
    }
  }
}

// Of delayed modules: each rank makes the values of those it holds, one module
// at a time.
void ModelCore::take_over_weights() {
  for (nn::ReplacedModule& replaced : replacements_.replaced) {
    if (replaced.tensors.empty()) {
      continue;
    }
    if (layout_->holds_part_of(replaced.path)) {
      std::vector<at::Tensor> tensors;
      for (const auto& [name, tensor] : replaced.tensors) {
        tensors.push_back(tensor);
      }
      tracer::materialize(tensors);
      nn::take_over(replaced);
    }
    replaced.tensors.clear();
  }
}

// A distributed parameter that met the samples of its whole TP_GROUP has the
// sum of that group's gradients already, so only the replicas' sum is missing;
// what it is divided by is the number of different batches in any case.
void ModelCore::make_reducers() {
  Session& s = session();
  if (s.group(Group::kDP).size() == 1) {
    return;
  }
  NamedTensors equal;
  NamedTensors scaled;
  for (const auto& item : table_->local_parameters()) {
    (layout_->is_scaled_batch(item.first) ? scaled : equal).push_back(item);
  }
  world_ = s.world;
  const bool alone = s.engine->models().size() == 1;
  const auto group_of = [&](Group kind) -> comm::ProcessGroup& {
    if (alone) {
      return s.group(kind);
    }
    own_groups_.push_back(s.world->new_group(
        tessera::str(topology::name_of(kind), " of model ", number_), s.group(kind).ranks()));
    return *own_groups_.back();
  };
  runtime::GradientReducer::Options options;
  options.bucket_bytes = static_cast<std::int64_t>(options_.bucket_cap_mb * (1 << 20));
  options.overlap = options_.overlapping_allreduce;
  options.ordered = s.config.reproducible && s.config.pipeline_parallel_degree > 1;
  reducers_.push_back(std::make_unique<runtime::GradientReducer>(
      *s.world, group_of(Group::kDP), *s.control, equal, options));
  if (s.group(Group::kTP).size() == 1) {
    return;
  }
  options.scale = 1.0 / data_size();
  reducers_.push_back(std::make_unique<runtime::GradientReducer>(
      *s.world, group_of(Group::kRDP), *s.rdp_control, scaled, options));
}

bool ModelCore::had_backward() const {
  return std::any_of(reducers_.begin(), reducers_.end(), [](const auto& reducer) {
    return reducer->had_backward();
  });
}

void ModelCore::expect_backward() {
  for (const auto& reducer : reducers_) {
    reducer->expect_backward();
  }
}

std::string ModelCore::sparse_gradient() const {
  for (const auto& reducer : reducers_) {
    std::string sparse = reducer->sparse_gradient();
    if (!sparse.empty()) {
      return sparse;
    }
  }
  return {};
}

// Every rank of the DP_GROUP learns of a failure in the first round; the others
// follow all the same, so that no collective is left half done.
void ModelCore::finish_step(const std::optional<std::string>& failure) {
  // A step that failed leaves gradients that only zero_grad mends.
  const int passes = std::exchange(passes_, 0);
  std::optional<std::string> problem = failure;
  bool backward = false;
  std::optional<UserError> thrown;
  const bool averages =
      at::GradMode::is_enabled() && passes + 1 >= options_.backward_passes_per_step;
  std::optional<timeline::Span> span;
  if (!reducers_.empty()) {
    const Session& s = session();
    span.emplace(
        *s.recorder,
        averages ? "gradient averaging" : "agreement of replicas",
        "comm",
        static_cast<int>(s.engine->step_number() - 1));
  }
  for (const auto& reducer : reducers_) {
    try {
      backward = reducer->finish(problem) || backward;
    } catch (const UserError& error) {
      thrown = thrown.value_or(error);
      problem = problem.value_or(error.what());
    }
  }
  if (thrown) {
    throw UserError(*thrown);
  }
  passes_ = backward ? (passes + 1) % options_.backward_passes_per_step : passes;
}

void ModelCore::average_gradients() {
  if (reducers_.empty()) {
    return;
  }
  Session& s = session();
  at::Tensor flags = at::zeros({2}, at::kByte);
  auto* flag = flags.data_ptr<std::uint8_t>();
  std::vector<std::string> names;
  for (const auto& reducer : reducers_) {
    const std::string& name = names.emplace_back(reducer->unaveraged_gradient());
    flag[names.size() - 1] = name.empty() ? 0 : 1;
  }
  if (reducers_.size() == 1) {
    s.control->all_reduce(flags, comm::ReduceOp::kMax);
  } else {
    refuse_distributed(flags, names[1]);
  }
  if (flag[0] != 0) {
    reducers_[0]->average_rest();
  }
}

// A distributed gradient holds sums over the ranks of a TP_GROUP: what was added to it by itself
// cannot be told from what is averaged already. Every rank of the world throws.
void ModelCore::refuse_distributed(const at::Tensor& flags, const std::string& parameter) {
  Session& s = session();
  comm::ProcessGroup& world = s.group(Group::kWorld);
  world.all_reduce(flags, comm::ReduceOp::kMax);
  if (flags.data_ptr<std::uint8_t>()[1] == 0) {
    return;
  }
  std::string text;
  if (!parameter.empty()) {
    text = tessera::str(
        "rank ",
        s.world->rank(),
        ": a backward outside of a step, or a step that did not average, added to the gradient of "
        "the distributed parameter '",
        parameter,
        "'; call model.backward inside tessera::step, and optimizer.step() after "
        "backward_passes_per_step steps");
  }
  for (const auto& theirs : comm::all_gather_object(*s.world, world, c10::IValue(text))) {
    if (!theirs.toStringRef().empty()) {
      throw UserError(theirs.toStringRef());
    }
  }
}

} // namespace tessera::train
