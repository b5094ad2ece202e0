// DistributedOptimizer's part of norms of whole parameters, of which ranks hold parts.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/process_group.h"
#include "tessera/context/agreement.h"
#include "tessera/context/context.h"
#include "tessera/model/model_core.h"
#include "tessera/optim/distributed_optimizer.h"
#include "tessera/optim/numbers_of_ranks.h"
#include "tessera/optim/state_sharing.h"
#include "tessera/optim/whole_norms.h"
#include "tessera/tensor/value.h"

namespace tessera::optim {

using model::ModelCore;

at::Tensor of_all_ranks(const Context& context, const std::vector<double>& numbers) {
  comm::ProcessGroup& world = context.group(Group::kWorld);
  const auto count = static_cast<std::int64_t>(numbers.size());
  at::Tensor all = at::empty({world.size(), count}, at::kDouble);
  world.all_gather(all, at::tensor(numbers, at::kDouble));
  return all;
}

namespace {

/// Leaves of a part's tensor what its rank counts. `counted`: the counted parts of a tensor of
/// the whole parameter's shape.
std::optional<at::Tensor> counted_part(
    const sharding::ModelShards& shards,
    const at::Tensor& parameter,
    const at::Tensor& tensor,
    const std::function<std::vector<at::Tensor>(const at::Tensor& whole)>& counted) {
  const at::NoGradGuard no_grad;
  std::int64_t elements = 0;
  // One number stands for all, as the shapes alone tell.
  for (const at::Tensor& piece : counted(at::scalar_tensor(0).expand(parameter.sizes()))) {
    elements += piece.numel();
  }
  if (elements == 0) {
    return std::nullopt;
  }
  if (elements == parameter.numel()) {
    return tensor;
  }
  const at::Tensor mask = at::zeros(parameter.sizes());
  for (at::Tensor piece : counted(mask)) {
    piece.fill_(1);
  }
  const sharding::DividedParameters& all = shards.parameters();
  return tensor * all.part_of(*all.find(parameter), mask);
}

} // namespace

/// The parts of a tensor of the parameter's shape that no other rank of the world counts. With
/// sharded data parallelism the first shard group of each stage counts: each of its ranks its
/// parts, the first one also what all of them hold. With shard_optimizer_state owners count, else
/// the first replica; of what several ranks of a TP_GROUP hold the first one of these.
std::vector<at::Tensor> DistributedOptimizer::counted_in_world(
    const at::Tensor& parameter,
    const at::Tensor& tensor) const {
  const Context& context = this->context();
  const int place = context.coordinates().rdp;
  if (!own_part(parameter).is_same(parameter)) {
    if (place >= context.config.sharded_data_parallel_degree) {
      return {};
    }
    const auto piece = counted_part(
        *owners_.at(parameter.unsafeGetTensorImpl()).model->shards(),
        parameter,
        tensor,
        [&](const at::Tensor& whole) { return counted_once(parameter, whole); });
    return piece ? std::vector<at::Tensor>{*piece} : std::vector<at::Tensor>();
  }
  const bool owners_count = sharing_->in_use(models_);
  return owners_count || place == 0 ? counted_once(parameter, tensor) : std::vector<at::Tensor>();
}

/// What the optimizer asks in an update; nullptr: this process holds the whole. It refers to this
/// object, which may move afterwards.
WholeNorms DistributedOptimizer::norms_for_update(bool whole_here) {
  if (whole_here) {
    return nullptr;
  }
  return [this](const std::vector<NormOf>& asked) {
    number_parameters();
    return whole_norms(asked);
  };
}

namespace {

std::string key_of(const ModelCore& model, const std::string& name) {
  return tessera::str(model.number(), "/", name);
}

/// What is wrong with a parameter of no model.
std::string unknown_problem(const NormOf& of) {
  return tessera::str(
      "the optimizer needs the norm of a parameter of shape ",
      of.parameter.sizes(),
      " that is not the model's, so nobody knows which rank counts it; register it in the model");
}

} // namespace

/// Collective over the world where the models have changed since.
void DistributedOptimizer::number_parameters() {
  if (numbered_ == prepared_) {
    return;
  }
  std::vector<std::string> names;
  for (const auto& [address, owner] : owners_) {
    names.push_back(key_of(*owner.model, owner.name));
  }
  numbers_.clear();
  for (const c10::IValue& of_rank :
       comm::all_gather_object(*context().world, context().group(Group::kWorld), pack(names))) {
    for (const std::string& name : unpack<std::vector<std::string>>(of_rank)) {
      numbers_.emplace(name, 0);
    }
  }
  std::size_t number = 0;
  for (auto& [name, value] : numbers_) {
    value = number++;
  }
  numbered_ = prepared_;
}

/// Every rank adds the same numbers in the same order, so updates of replicas are equal to the bit.
Norms DistributedOptimizer::whole_norms(const std::vector<NormOf>& asked) const {
  // Of a parameter several norms may be asked for, each the same number of times on all its ranks.
  std::vector<std::size_t> places;
  std::map<std::string, std::size_t> times;
  std::string problem;
  std::vector<double> squares(2 * numbers_.size() + 1); // the last: ranks with a problem
  for (const NormOf& of : asked) {
    const auto found = owners_.find(of.parameter.unsafeGetTensorImpl());
    const std::string here = found == owners_.end() ? unknown_problem(of) : sparse_problem(of);
    if (!here.empty()) {
      problem = here;
      continue;
    }
    const Owner& owner = found->second;
    const std::string key = key_of(*owner.model, owner.name);
    places.push_back(times[key]++ * numbers_.size() + numbers_.at(key));
    squares.at(places.back()) = sum_of_squares(counted_in_world(owner.parameter, of.tensor));
  }
  squares.back() = problem.empty() ? 0 : 1;
  const at::Tensor of_ranks = of_all_ranks(context(), squares);
  std::vector<double> sums(squares.size());
  for (std::int64_t rank = 0; rank < of_ranks.size(0); ++rank) {
    const double* of_rank = of_ranks[rank].data_ptr<double>();
    std::transform(sums.begin(), sums.end(), of_rank, sums.begin(), std::plus<>());
  }
  if (sums.back() != 0) {
    throw_first_problem<UserError>(
        *context().world,
        context().group(Group::kWorld),
        problem.empty() ? std::nullopt : std::optional<std::string>(problem));
  }
  Norms norms;
  for (const std::size_t place : places) {
    norms.each.push_back(std::sqrt(sums[place]));
  }
  norms.all = root_of_sum(std::move(sums));
  return norms;
}

} // namespace tessera::optim
