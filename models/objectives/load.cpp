#include "models/objectives/load.h"

#include "models/data/batch.h"
#include "models/objectives/draws.h"

namespace tessera::models {

Examples training_examples(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    data::MixtureSampler& sampler,
    std::uint64_t seed) {
  const std::uint64_t first = sampler.next_place();
  const std::vector<data::Draw> draws = sampler.next();
  std::vector<std::uint64_t> keys;
  for (std::uint64_t i = 0; i < draws.size(); ++i) {
    keys.push_back(training_key(seed, first + i));
  }
  return objective.make(data::load_windows(datasets, draws, objective.facts().window), keys);
}

Examples evaluation_examples(
    const Objective& objective,
    const data::TokenDataset& dataset,
    const std::vector<std::uint64_t>& samples) {
  std::vector<std::uint64_t> keys;
  for (const std::uint64_t sample : samples) {
    keys.push_back(evaluation_key(sample));
  }
  return objective.make(data::load_windows(dataset, samples, objective.facts().window), keys);
}

Examples evaluation_examples(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    const std::vector<data::Draw>& draws) {
  std::vector<std::uint64_t> keys;
  for (const data::Draw& draw : draws) {
    keys.push_back(evaluation_key(draw.sample));
  }
  return objective.make(data::load_windows(datasets, draws, objective.facts().window), keys);
}

} // namespace tessera::models
