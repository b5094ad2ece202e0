#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/state/optimizer_state.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::checkpoint {

/// The box of a larger tensor that a rank holds. Both empty: all of it.
struct Slice {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;

  bool whole() const {
    return global_shape.empty();
  }
  bool operator==(const Slice&) const = default;
};

/// One tensor, or one slice of one, in a file of a checkpoint.
struct TensorRecord {
  std::string name;
  std::string dtype; // as safetensors spells it
  std::vector<std::int64_t> shape; // in the file
  Slice slice;
  std::string file;
  /// Of name, dtype, shape, slice and data, see hash_of_tensor.
  std::uint64_t hash = 0;
};

struct FileEntry {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint64_t checksum = 0;
};

/// The optimizer without its tensors. State of parameter P is stored as tensors
/// named "P/field"; numbers as tensors without dimension.
struct OptimizerRecord {
  std::string kind; // "" when a checkpoint has none
  std::vector<state::OptimizerState::Group> groups;
  /// fields that are numbers, not tensors
  std::vector<std::string> number_fields;
};

/// What one rank has written, for the rank that commits. A plain value that
/// travels as text.
struct RankFiles {
  int rank = 0;
  /// Not empty: this rank's part failed, and so does the save.
  std::string error;
  std::vector<FileEntry> files;
  std::vector<TensorRecord> model;
  std::vector<TensorRecord> optimizer_tensors;
  OptimizerRecord optimizer;
};

std::string to_text(const RankFiles& files);
/// Throws: CheckpointError when it is not what to_text made.
RankFiles rank_files_from_text(const std::string& text);

/// meta.json: all that a checkpoint says about itself.
struct Meta {
  int version = 1;
  std::string torch_version;
  std::string tag;
  /// Rises by one with every save into a folder; orders checkpoints without a
  /// clock.
  std::uint64_t sequence = 0;
  std::string model;
  topology::Degrees degrees;
  std::string placement = "DPT";
  /// module path -> pp rank; empty when the model was whole
  std::map<std::string, int> partition;
  /// A JSON document of the user's own; "null" when there is none.
  std::string user_content = "null";

  std::vector<FileEntry> files;
  std::vector<TensorRecord> tensors;
  std::vector<TensorRecord> optimizer_tensors;
  OptimizerRecord optimizer;
  /// Independent of pp and dp degrees and of who wrote what.
  std::uint64_t parameter_hash = 0;
  std::uint64_t optimizer_hash = 0;
};

/// Pretty JSON that ends with a checksum over all the rest.
/// Throws: CheckpointError when user_content is no valid JSON.
std::string to_json(const Meta& meta);
/// Throws: CheckpointError naming `what` and the field that is wrong, or that
/// the checksum differs.
Meta meta_from_json(const std::string& text, const std::string& what);

std::uint64_t hash_of_tensor(const TensorRecord& record, std::uint64_t data_checksum);

/// A sum: the same in any order, whoever holds which tensor.
std::uint64_t combined_hash(const std::vector<TensorRecord>& tensors);
/// Of the tensors and of every parameter's options.
std::uint64_t combined_hash(
    const std::vector<TensorRecord>& tensors,
    const OptimizerRecord& optimizer);

} // namespace tessera::checkpoint
