#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

/// Random numbers that are a function of what they are for, and not of who draws them when.
namespace tessera::random {

/// Where this rank's samples stand in the batch of a step, the same in every step. The batch is
/// that of all data ranks, one behind the other; each divides its own into microbatches, in order.
struct Layout {
  std::uint64_t seed = 0; // the run's, equal on all ranks
  int data_rank = 0;
  /// Data ranks of the ranks of this TP_GROUP, in its order.
  std::vector<int> data_ranks_of_group = {0};
  int microbatches = 1;
  /// For each data rank the samples of those before it; empty: each brings equally many.
  std::vector<std::int64_t> first_samples = {};
};

/// Names one use of random numbers: a tensor's dropout. No two uses of a run share a number.
struct Use {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t number = 0; // of the use within the microbatch's way through the model
};

/// The uses of one microbatch of a step. A count of uses, since the calls of a microbatch follow
/// one another whatever ranks they are on: the count goes with every call and comes back with its
/// result, so it depends neither on the partition nor on the other microbatches.
struct Stream {
  std::shared_ptr<const Layout> layout;
  std::int64_t step = 0;
  int microbatch = 0;
  /// Samples of this rank in the microbatch; 0 where they are not known.
  std::int64_t samples = 0;
  std::uint32_t used = 0;

  /// Returns where the microbatch of a data rank begins in the whole tensor, of which that rank
  /// brings `rows` rows in it: this one, or one with as many samples.
  std::int64_t first_row_of(int data_rank, std::int64_t rows) const {
    if (layout->first_samples.empty()) {
      return (std::int64_t{data_rank} * layout->microbatches + microbatch) * rows;
    }
    const std::int64_t each = samples > 0 ? rows / samples : rows; // of a sample
    return layout->first_samples.at(static_cast<std::size_t>(data_rank)) * each + microbatch * rows;
  }
  std::int64_t first_row(std::int64_t rows) const {
    return first_row_of(layout->data_rank, rows);
  }
};

/// The stream of this thread; nullptr: random numbers come from the generators of torch.
Stream* current();

/// Makes `stream` this thread's for a scope, or none. Scopes nest.
/// Threads: it belongs to the thread that opened it.
class StreamScope {
 public:
  explicit StreamScope(std::optional<Stream> stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  std::optional<Stream> stream_;
  Stream* previous_;
};

/// Returns the stream of this thread as it stands, for a scope that draws the same again.
std::optional<Stream> captured();

/// Returns the next use of a stream.
Use next_use(Stream& stream);

/// What a call carries to another rank, and back: how many uses there were, of how many samples.
/// Without a stream both are 0, and nothing is set.
struct Count {
  std::uint32_t used = 0;
  std::int32_t samples = 0;
};
Count count();
void set_count(const Count& count);

} // namespace tessera::random
