#include "models/data/batch.h"

#include <utility>

#include <torch/torch.h>

namespace tessera::data {

namespace {

/// `sample_of(i)` is dataset and sample of row i.
template <typename SampleOf>
at::Tensor load_rows(std::size_t count, const Window& window, const SampleOf& sample_of) {
  at::Tensor tokens = torch::empty({static_cast<std::int64_t>(count), window.length}, at::kLong);
  auto* row = tokens.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [dataset, sample] = sample_of(i);
    dataset->copy(
        sample * static_cast<std::uint64_t>(window.stride),
        static_cast<std::uint64_t>(window.length),
        row);
    row += window.length;
  }
  return tokens;
}

} // namespace

at::Tensor load_windows(
    const TokenDataset& dataset,
    const std::vector<std::uint64_t>& samples,
    const Window& window) {
  return load_rows(
      samples.size(), window, [&](std::size_t i) { return std::make_pair(&dataset, samples[i]); });
}

at::Tensor load_windows(
    const std::vector<TokenDataset>& datasets,
    const std::vector<Draw>& draws,
    const Window& window) {
  return load_rows(draws.size(), window, [&](std::size_t i) {
    return std::make_pair(&datasets.at(draws[i].part), draws[i].sample);
  });
}

} // namespace tessera::data
