#include "tessera/context/data_rows.h"

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera {

DataShares::DataShares(const config::Config& config, const std::vector<int>& replicas)
    : ranks_(static_cast<int>(replicas.size())) {
  if (config.replica_samples.empty()) {
    return;
  }
  const int sharing = config.prescaled_batch ? 1 : config.tensor_parallel_degree;
  begins_.push_back(0);
  for (const int replica : replicas) {
    samples_.push_back(config.replica_samples.at(at(replica)) / sharing);
    begins_.push_back(begins_.back() + samples_.back());
  }
}

DataShares::Rows DataShares::rows_of(int data_rank, std::int64_t batch) const {
  if (are_said()) {
    if (batch != all_samples()) {
      throw ShapeError(
          str("a batch of ",
              batch,
              " rows, but the numbers of replica_samples add up to ",
              all_samples(),
              "; make batches of ",
              all_samples(),
              ", or change replica_samples"));
    }
    return {begins_[at(data_rank)], samples_[at(data_rank)]};
  }
  if (batch % ranks_ != 0) {
    throw ShapeError(
        str("a batch of ",
            batch,
            " rows, which the ",
            ranks_,
            " ranks that are fed samples of their own do not divide; make it a multiple of ",
            ranks_,
            ", or say in replica_samples what each replica takes"));
  }
  const std::int64_t count = batch / ranks_;
  return {data_rank * count, count};
}

double DataShares::weight_of(int data_rank) const {
  if (!are_said()) {
    return 1;
  }
  return static_cast<double>(samples_[at(data_rank)]) * ranks_ / static_cast<double>(all_samples());
}

std::vector<std::int64_t> DataShares::begins() const {
  return are_said() ? std::vector<std::int64_t>(begins_.begin(), begins_.end() - 1)
                    : std::vector<std::int64_t>();
}

} // namespace tessera
