#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/data/document_index.h"
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

/// Where the document of each of these tokens begins, as a place in its row (document_begins.h).
/// Shapes: begins_BW (int64, processor).
at::Tensor load_document_begins(
    const DocumentIndex& index,
    const std::vector<std::uint64_t>& samples,
    const Window& window);
at::Tensor load_document_begins(
    const std::vector<DocumentIndex>& indexes,
    const std::vector<Draw>& draws,
    const Window& window);

} // namespace tessera::data
