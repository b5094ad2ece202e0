#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

/// A position in the sequence of all samples, epoch after epoch. It counts samples of all ranks, so
/// that a run can be resumed with other degrees.
struct SamplerState {
  std::uint64_t epoch = 0;
  std::uint64_t index = 0; // samples of this epoch that were handed out

  bool operator==(const SamplerState&) const = default;
};

std::string to_json(const SamplerState& state);
/// Throws: CheckpointError that names the missing or wrong field.
SamplerState sampler_state_from_json(const std::string& text);

/// The tokens of a text that make one sample: sample i is the tokens [i stride, i stride + length).
struct Window {
  std::int64_t stride = 0;
  std::int64_t length = 0; // at least the stride
};

struct SamplerOptions {
  std::uint64_t samples = 0; // in an epoch
  std::uint64_t batch = 0; // samples of this rank in a step
  int dp_rank = 0;
  int dp_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = true;
};

/// Which samples this rank trains on in each step. Every epoch is its own
/// permutation of all samples, computed from seed and epoch without memory; a
/// step that reaches past the end of an epoch takes its last samples from the
/// next, so none is dropped.
///
/// Of a step's batch * dp_size samples, rank r gets the r-th run of `batch`:
/// the set of samples of a step depends on batch * dp_size only, and so do
/// their order over ranks. Ranks of one pipeline or tensor group pass the same
/// dp_rank as the parallelism asks for.
///
/// Threads: one thread. Not collective: ranks agree because they compute alike.
class Sampler {
 public:
  /// Throws: ConfigError for no samples, no batch, or a rank outside of size.
  explicit Sampler(const SamplerOptions& options);

  /// Sample indices of this rank for the next step.
  std::vector<std::uint64_t> next();

  /// The place of the first sample that next() will return in the row of all samples of all epochs
  /// and ranks; the others follow it.
  std::uint64_t next_place() const;

  SamplerState state() const {
    return state_;
  }
  /// Throws: CheckpointError when the index is beyond an epoch of these
  /// samples.
  void set_state(const SamplerState& state);

 private:
  std::uint64_t sample_at(std::uint64_t epoch, std::uint64_t index) const;

  SamplerOptions options_;
  int half_bits_; // of an index in the permutation's network
  SamplerState state_;
};

/// How many samples `tokens` tokens have. Throws: ConfigError when there is not one, naming `what`.
std::uint64_t count_samples(std::uint64_t tokens, const Window& window, const std::string& what);

} // namespace tessera::data
