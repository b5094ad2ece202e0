#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/data/token_file.h"

namespace tessera::data {

/// Input and what the model shall say at each position: the next token.
/// Shapes: ids_BS, targets_BS (int64, CPU).
struct Batch {
  at::Tensor ids;
  at::Tensor targets;
};

/// Samples as a Sampler names them: sample i is the tokens [i S, i S + S].
Batch load_batch(
    const TokenDataset& dataset,
    const std::vector<std::uint64_t>& samples,
    std::int64_t sequence);

} // namespace tessera::data
