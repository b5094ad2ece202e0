#pragma once

#include <cstdint>
#include <vector>

#include "models/data/mixture.h"
#include "models/data/token_file.h"
#include "models/objectives/objective.h"

namespace tessera::models {

/// The samples of this rank's next step in training; `seed` is the job's.
/// Not collective: ranks agree because they compute alike.
Examples training_examples(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    data::MixtureSampler& sampler,
    std::uint64_t seed);

/// Samples by number, made in one way whenever they are asked for.
Examples evaluation_examples(
    const Objective& objective,
    const data::TokenDataset& dataset,
    const std::vector<std::uint64_t>& samples);
Examples evaluation_examples(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    const std::vector<data::Draw>& draws);

} // namespace tessera::models
