#pragma once

#include <memory>

#include "models/objectives/objective.h"

// The objectives that make_objective chooses from.
namespace tessera::models {

/// Each position predicts the token after it.
std::unique_ptr<Objective> causal_objective(const TokenTable& table, std::int64_t sequence);

/// The objective of masked.h. The mask and the ids of begin and end are the tokenizer's ("[MASK]"
/// or "<mask>", "[CLS]" or "<s>", "[SEP]" or "</s>"); ids for those that it lacks are reserved
/// behind its own.
std::unique_ptr<Objective>
masked_objective(const BertOptions& options, const TokenTable& table, std::int64_t sequence);

/// The objective of span_corruption.h. Sentinels are the tokenizer's "<extra_id_0>" and on, or 100
/// ids reserved behind its own, the first of them last, as transformers has them.
std::unique_ptr<Objective>
span_corruption_objective(const T5Options& options, const TokenTable& table, std::int64_t sequence);

/// Which items a user takes: of `sequence` pairs a sample scores, the first was seen, and the items
/// of the others are drawn from all others, so that some may be ones that the user takes as well.
/// Source: He et al. 2017, sections 3.1 and 4.1 (four are drawn for each that was seen).
std::unique_ptr<Objective> interactions_objective(const TokenTable& table, std::int64_t sequence);

} // namespace tessera::models
