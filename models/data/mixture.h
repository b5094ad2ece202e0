#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/data/data_hashes.h"
#include "models/data/mixture_part.h"
#include "models/data/sampler.h"
#include "models/data/token_file.h"

namespace tessera::data {

/// Returns "a", or "a x 0.25 + b x 0.75" with the shares of the weights.
std::string to_text(const std::vector<MixturePart>& parts);

/// Opens one file (kTrainFile or kValidationFile) of each folder. `verify` is passed to
/// TokenDataset. Throws: ConfigError of TokenDataset, and when folders have vocabularies of other
/// sizes.
std::vector<TokenDataset>
open_parts(const std::vector<MixturePart>& parts, const char* file, bool verify);

/// Returns the hashes of each folder. Throws: ConfigError of check_files_of_manifest, and one that
/// names two folders with different tokenizers, under which one id would mean two things.
std::vector<DataHashes> hashes_of_parts(
    const std::vector<MixturePart>& parts,
    const std::vector<TokenDataset>& train,
    const std::vector<TokenDataset>& validation);

/// Serialises what a checkpoint stores about the data: the hashes of a single folder, or a list of
/// hashes and weights.
std::string hashes_to_json(
    const std::vector<MixturePart>& parts,
    const std::vector<DataHashes>& hashes);

/// Returns a line for each difference between the data of a checkpoint (JSON of hashes_to_json) and
/// the data now; "" when there is none. Another directory with the same content is no difference.
/// Throws: Error when the JSON was not written by hashes_to_json.
std::string mixture_differences(
    const std::string& before,
    const std::vector<MixturePart>& parts,
    const std::vector<DataHashes>& hashes);

/// A sample of one of several parts.
struct Draw {
  std::size_t part = 0;
  std::uint64_t sample = 0;

  bool operator==(const Draw&) const = default;
};

struct MixtureOptions {
  std::vector<double> weights; // above 0, of any sum
  std::vector<std::uint64_t> samples; // of each part, in an epoch of its own
  std::uint64_t batch = 0; // samples of this rank in a step
  std::uint64_t before = 0; // those of the ranks before this one
  std::uint64_t all = 0; // those of all ranks; 0: there is one rank
  std::uint64_t seed = 0;
  bool shuffle = true;
};

/// Which samples of which part this rank trains on in each step. Sample n of the training, counted
/// over all ranks, comes from a part drawn with the weights from seed and n alone, and is the next
/// one of that part, which has epochs of its own: a small part begins anew while a large one is
/// read once. What a step takes does not depend on the data-parallel degree, nor on which rank
/// takes how many of it, so a run goes on under any layout. With one part it is a Sampler: same
/// samples, same state.
///
/// Threads: one thread. Not collective: ranks agree because they compute alike.
class MixtureSampler {
 public:
  /// Throws: ConfigError for no part, a weight that is not above 0, no samples, no batch, or one
  /// that reaches beyond that of all ranks.
  explicit MixtureSampler(const MixtureOptions& options);

  /// The samples of this rank for the next step.
  std::vector<Draw> next();

  /// The number of the first sample that next() will return, counted over all samples of all ranks;
  /// the others follow it.
  std::uint64_t next_place() const;

  /// Serialises the position as JSON, with one part in the form of Sampler.
  std::string state() const;
  /// Throws: CheckpointError for a state of another number of parts, or beyond their samples.
  void set_state(const std::string& json);

 private:
  std::size_t part_of(std::uint64_t number) const;

  MixtureOptions options_;
  std::vector<double> up_to_; // sums of the shares
  std::vector<Sampler> parts_;
  std::uint64_t drawn_ = 0; // samples of all ranks since the beginning
};

} // namespace tessera::data
