#pragma once

#include <cstdint>
#include <memory>

#include "models/objectives/objective.h"

namespace tessera::models {

/// Returns the objective of a model's family: the next token for gpt, llama, gptj, gpt_neo and
/// gpt_neox, masked tokens for bert and roberta, span corruption for t5, interactions for ncf.
/// `sequence` is the positions of the model's input (of a T5, of its encoder; of an NCF, the pairs
/// that a sample scores). Throws: ConfigError for data of another kind than the family's, a
/// sequence that is too short, or more sentinels than there are.
std::unique_ptr<Objective>
make_objective(const Options& options, const TokenTable& table, std::int64_t sequence);

} // namespace tessera::models
