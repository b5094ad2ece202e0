#include "models/objectives/load.h"

#include <ATen/ATen.h>

#include "models/data/batch.h"
#include "models/objectives/draws.h"

namespace tessera::models {

namespace {

/// Adds what the model is told of documents, of which begins_BW says where they begin.
void tell_of_documents(Examples& examples, const at::Tensor& begins, const Documents& documents) {
  const std::int64_t positions = examples.inputs.at(0).size(1);
  const at::Tensor own = begins.narrow(1, 0, positions).contiguous();
  examples.inputs.push_back(own);
  if (documents.reset_positions) {
    examples.inputs.push_back(at::arange(positions, own.options()) - own);
  }
}

Examples examples_of(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    const std::vector<data::Draw>& draws,
    const std::vector<std::uint64_t>& keys,
    const Documents& documents) {
  const data::Window& window = objective.facts().window;
  Examples examples = objective.make(data::load_windows(datasets, draws, window), keys);
  if (!documents.indexes.empty()) {
    tell_of_documents(
        examples, data::load_document_begins(documents.indexes, draws, window), documents);
  }
  return examples;
}

} // namespace

Examples training_examples(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    data::MixtureSampler& sampler,
    std::uint64_t seed,
    const Documents& documents) {
  const std::uint64_t first = sampler.next_place();
  const std::vector<data::Draw> draws = sampler.next();
  std::vector<std::uint64_t> keys;
  for (std::uint64_t i = 0; i < draws.size(); ++i) {
    keys.push_back(training_key(seed, first + i));
  }
  return examples_of(objective, datasets, draws, keys, documents);
}

Examples evaluation_examples(
    const Objective& objective,
    const data::TokenDataset& dataset,
    const std::vector<std::uint64_t>& samples,
    const Documents& documents) {
  std::vector<std::uint64_t> keys;
  for (const std::uint64_t sample : samples) {
    keys.push_back(evaluation_key(sample));
  }
  const data::Window& window = objective.facts().window;
  Examples examples = objective.make(data::load_windows(dataset, samples, window), keys);
  if (!documents.indexes.empty()) {
    tell_of_documents(
        examples,
        data::load_document_begins(documents.indexes.front(), samples, window),
        documents);
  }
  return examples;
}

Examples evaluation_examples(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    const std::vector<data::Draw>& draws,
    const Documents& documents) {
  std::vector<std::uint64_t> keys;
  for (const data::Draw& draw : draws) {
    keys.push_back(evaluation_key(draw.sample));
  }
  return examples_of(objective, datasets, draws, keys, documents);
}

} // namespace tessera::models
