#pragma once

#include <cstdint>
#include <vector>

#include "models/data/mixture.h"
#include "models/data/token_file.h"
#include "models/objectives/documents.h"
#include "models/objectives/objective.h"

namespace tessera::models {

/// The samples of this rank's next step in training; `seed` is the job's. With `documents`, which
/// only objectives take whose inputs are the tokens themselves, the inputs go on with
/// document_begins_BS, and where positions are reset with positions_BS (registry.h).
/// Not collective: ranks agree because they compute alike.
Examples training_examples(
    const Objective& objective,
    const std::vector<data::TokenDataset>& datasets,
    data::MixtureSampler& sampler,
    std::uint64_t seed,
    const Documents& documents = {});

/// Samples by number, made in one way whenever they are asked for.
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
