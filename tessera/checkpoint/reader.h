#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/records.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/state/optimizer_state.h"

namespace tessera::checkpoint {

/// How much of a checkpoint is verified when it is opened.
enum class Verify {
  kSizes, // meta.json is whole, every file exists and has its size
  kContent // also every file's checksum, which reads all of it once
};

/// A tensor that this rank loads.
struct Wanted {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape; // shape on this rank
  Slice slice;
};

struct ReadOptions {
  /// The model that the checkpoint must be of; "" does not compare.
  std::string model;
  /// All parameters and buffers of the whole model. Further tensors in the checkpoint are an error.
  /// Empty does not compare.
  std::vector<std::string> all_names;
  /// Converts f32 to bf16 and the like, instead of refusing.
  bool convert_dtypes = false;
};

/// A complete checkpoint, which any layout of ranks has written and any layout can load. Each rank
/// opens it and reads its tensors from whichever files hold them; the hash of every tensor is
/// verified when it is read.
///
/// Threads: one object, one thread. Not collective.
class Checkpoint {
 public:
  /// Opens the checkpoint `tag` of a folder and no other.
  /// Throws: CheckpointError that names the file that is missing, torn or damaged, or that says
  /// that there is no such checkpoint.
  static Checkpoint
  open(const std::string& directory, const std::string& tag, Verify verify = Verify::kContent);

  const std::string& path() const {
    return path_;
  }
  const Meta& meta() const {
    return meta_;
  }

  /// The parameters and buffers that were saved.
  std::set<std::string> names() const;

  /// Returns all of them, whole, on the CPU. Throws: CheckpointError for damaged files.
  std::map<std::string, at::Tensor> load_all() const;

  /// Returns new tensors on the CPU, in the order of `wanted`.
  /// Throws: CheckpointError that lists together all tensors that are missing, unexpected, or of
  /// another shape or dtype, and says which model was saved.
  std::vector<at::Tensor> load_model(
      const std::vector<Wanted>& wanted,
      const ReadOptions& options = {}) const;

  /// Checks what load_model would check, without loading.
  /// Throws: as load_model, for all of `wanted` at once.
  void check_model(const std::vector<Wanted>& wanted, const ReadOptions& options = {}) const;

  /// Returns the optimizer state of these parameters (name, shape and slice are used), for
  /// `restore`. Groups name only these parameters. Without `states` options of groups alone.
  /// Throws: CheckpointError when the checkpoint has no optimizer, or a part is missing or damaged.
  state::OptimizerState load_optimizer(const std::vector<Wanted>& parameters, bool states = true)
      const;

  /// Returns the tensors that rank `rank` saved for itself alone; empty when there are none.
  std::map<std::string, at::Tensor> load_rank_tensors(int rank) const;

 private:
  Checkpoint(std::string path, Meta meta);

  const SafetensorsFile& file(const std::string& name) const;
  at::Tensor read(const TensorRecord& record) const;
  at::Tensor assemble(
      const std::vector<const TensorRecord*>& pieces,
      const std::vector<std::int64_t>& shape,
      const Slice& slice) const;
  std::string mismatches(const std::vector<Wanted>& wanted, const ReadOptions& options) const;

  std::string path_;
  Meta meta_;
  std::map<std::string, std::vector<const TensorRecord*>> tensors_;
  // parameter -> its records in the optimizer's files
  std::map<std::string, std::vector<const TensorRecord*>> optimizer_tensors_;
  mutable std::map<std::string, std::unique_ptr<SafetensorsFile>> open_files_;
};

/// The newest checkpoint that is whole, and warnings about those that were skipped.
struct Newest {
  std::optional<Checkpoint> checkpoint;
  std::vector<std::string> warnings;
};

/// Opens the checkpoint that `newest` names. When that one is missing, torn or damaged, it opens
/// the whole checkpoint that was saved last, with a warning for each one skipped and why. The
/// result has no checkpoint when the folder does not exist or holds none at all.
///
/// Threads: any thread. Not collective.
/// Throws: CheckpointError when there are checkpoints but none is whole; it lists each with the
/// reason.
Newest open_newest(const std::string& directory, Verify verify = Verify::kContent);

} // namespace tessera::checkpoint
