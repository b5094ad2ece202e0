#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/data/mixture.h"
#include "models/data/sampler.h"
#include "models/data/token_file.h"

namespace tessera::data {

/// The tokens of samples as a Sampler names them. Shapes: tokens_BW (int64, processor) of
/// window.length.
at::Tensor load_windows(
    const TokenDataset& dataset,
    const std::vector<std::uint64_t>& samples,
    const Window& window);

/// The same of several datasets, as a MixtureSampler names samples.
at::Tensor load_windows(
    const std::vector<TokenDataset>& datasets,
    const std::vector<Draw>& draws,
    const Window& window);

} // namespace tessera::data
