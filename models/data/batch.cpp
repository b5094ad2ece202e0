#include "models/data/batch.h"

#include <torch/torch.h>

namespace tessera::data {

Batch load_batch(
    const TokenDataset& dataset,
    const std::vector<std::uint64_t>& samples,
    std::int64_t sequence) {
  const auto rows = static_cast<std::int64_t>(samples.size());
  Batch batch{torch::empty({rows, sequence}, at::kLong), torch::empty({rows, sequence}, at::kLong)};
  const auto length = static_cast<std::uint64_t>(sequence);
  auto* ids = batch.ids.data_ptr<std::int64_t>();
  auto* targets = batch.targets.data_ptr<std::int64_t>();
  for (const auto sample : samples) {
    dataset.copy(sample * length, length, ids);
    dataset.copy(sample * length + 1, length, targets);
    ids += sequence;
    targets += sequence;
  }
  return batch;
}

} // namespace tessera::data
