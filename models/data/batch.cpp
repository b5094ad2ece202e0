#include "models/data/batch.h"

#include <torch/torch.h>

#include "models/data/document_begins.h"

namespace tessera::data {

namespace {

/// `fill(i, first, row)` writes what belongs to the tokens from `first` on into row i, whose sample
/// is `sample_of(i)`.
template <typename SampleOf, typename Fill>
at::Tensor
load_rows(std::size_t count, const Window& window, const SampleOf& sample_of, const Fill& fill) {
  at::Tensor rows = torch::empty({static_cast<std::int64_t>(count), window.length}, at::kLong);
  auto* row = rows.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < count; ++i) {
    fill(i, sample_of(i) * static_cast<std::uint64_t>(window.stride), row);
    row += window.length;
  }
  return rows;
}

template <typename SampleOf, typename DatasetOf>
at::Tensor load_tokens(
    std::size_t count,
    const Window& window,
    const SampleOf& sample_of,
    const DatasetOf& dataset_of) {
  const auto length = static_cast<std::uint64_t>(window.length);
  return load_rows(
      count, window, sample_of, [&](std::size_t i, std::uint64_t first, std::int64_t* row) {
        dataset_of(i).copy(first, length, row);
      });
}

template <typename SampleOf, typename IndexOf>
at::Tensor load_begins(
    std::size_t count,
    const Window& window,
    const SampleOf& sample_of,
    const IndexOf& index_of_row) {
  const auto length = static_cast<std::uint64_t>(window.length);
  return load_rows(
      count, window, sample_of, [&](std::size_t i, std::uint64_t first, std::int64_t* row) {
        document_begins(index_of_row(i), first, length, row);
      });
}

} // namespace

at::Tensor load_windows(
    const TokenDataset& dataset,
    const std::vector<std::uint64_t>& samples,
    const Window& window) {
  return load_tokens(
      samples.size(),
      window,
      [&](std::size_t i) { return samples[i]; },
      [&](std::size_t) -> const TokenDataset& { return dataset; });
}

at::Tensor load_windows(
    const std::vector<TokenDataset>& datasets,
    const std::vector<Draw>& draws,
    const Window& window) {
  return load_tokens(
      draws.size(),
      window,
      [&](std::size_t i) { return draws[i].sample; },
      [&](std::size_t i) -> const TokenDataset& { return datasets.at(draws[i].part); });
}

at::Tensor load_document_begins(
    const DocumentIndex& index,
    const std::vector<std::uint64_t>& samples,
    const Window& window) {
  return load_begins(
      samples.size(),
      window,
      [&](std::size_t i) { return samples[i]; },
      [&](std::size_t) -> const DocumentIndex& { return index; });
}

at::Tensor load_document_begins(
    const std::vector<DocumentIndex>& indexes,
    const std::vector<Draw>& draws,
    const Window& window) {
  return load_begins(
      draws.size(),
      window,
      [&](std::size_t i) { return draws[i].sample; },
      [&](std::size_t i) -> const DocumentIndex& { return indexes.at(draws[i].part); });
}

} // namespace tessera::data
