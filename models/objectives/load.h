#pragma once

#include <cstdint>
#include <vector>

#include "models/data/mixture.h"
#include "models/data/token_file.h"
#include "models/objectives/documents.h"
#include "models/objectives/objective.h"

namespace tessera::models {

/// Returns the samples of this rank's next step in training; `seed` is the job's. With `documents`,
/// which only objectives accept whose inputs are the tokens themselves, document_begins_BS is added
/// to the inputs, and positions_BS where positions are reset (registry.h).
/// Not collective: ranks agree because they compute alike.
Examples training_examples(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    data::MixtureSampler& sampler,
    std::uint64_t seed,
    const Documents& documents = {});

/// Returns the samples of these numbers, which are the same in every call.
Examples evaluation_examples(
    const Objective& objective,
    const data::TokenDataset& dataset,
    const std::vector<std::uint64_t>& samples,
    const Documents& documents = {});
Examples evaluation_examples(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    const std::vector<data::Draw>& draws,
    const Documents& documents = {});

} // namespace tessera::models
