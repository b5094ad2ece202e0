#include "tessera/optim/rounding_places.h"

#include <algorithm>
#include <map>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/model/model_core.h"
#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/stochastic_rounding.h"
#include "tessera/state/element_places.h"

namespace tessera::optim {

namespace {

bool rounds(const torch::optim::OptimizerParamGroup& group) {
  const auto* options = dynamic_cast<const AdamW8bitOptions*>(&group.options());
  return options != nullptr && options->stochastic_rounding();
}

} // namespace

bool rounds_itself(
    const torch::optim::Optimizer& optimizer,
    const torch::optim::OptimizerParamGroup& group,
    const at::Tensor& parameter) {
  if (dynamic_cast<const AdamW8bit*>(&optimizer) == nullptr || !rounds(group)) {
    return false;
  }
  if (parameter.scalar_type() == at::kHalf) {
    throw ConfigError(tessera::str(
        "AdamW8bit has the option stochastic_rounding and a parameter of shape ",
        parameter.sizes(),
        " in f16, whose updates need f32 masters; write \"bf16\": true, or leave "
        "stochastic_rounding out"));
  }
  return parameter.scalar_type() == at::kBFloat16;
}

void tell_places(
    torch::optim::Optimizer& optimizer,
    const std::vector<model::ModelCore*>& models,
    std::uint64_t seed) {
  auto* own = dynamic_cast<AdamW8bit*>(&optimizer);
  const auto& groups = optimizer.param_groups();
  if (own == nullptr || std::none_of(groups.begin(), groups.end(), rounds)) {
    return;
  }
  auto roundings = std::make_shared<std::map<const void*, StochasticRounding>>();
  for (const model::ModelCore* model : models) {
    if (!model->partitioned()) {
      continue;
    }
    const auto places = state::element_places(model->state_layout());
    for (const auto& [name, parameter] : model->local_parameters()) {
      const auto found = places.find(name);
      if (found == places.end()) {
        continue; // the optimizer's step says so, if it has this one
      }
      const auto* shards = model->shards();
      const auto* divided = shards != nullptr ? shards->parameters().find(name) : nullptr;
      if (divided == nullptr) {
        roundings->try_emplace(parameter.unsafeGetTensorImpl(), seed, found->second);
      } else {
        const std::int64_t start = divided->per_rank * model->shards()->group().rank();
        roundings->try_emplace(
            divided->part.unsafeGetTensorImpl(),
            seed,
            found->second.slice(start, divided->per_rank));
      }
    }
  }
  own->round_by([roundings](const at::Tensor& parameter) -> const StochasticRounding* {
    const auto found = roundings->find(parameter.unsafeGetTensorImpl());
    return found == roundings->end() ? nullptr : &found->second;
  });
}

} // namespace tessera::optim
