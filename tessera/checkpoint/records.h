#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/state/optimizer_state.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::checkpoint {

/// The part of a larger tensor that a rank holds, as a box. Both vectors are empty when it holds
/// all of it.
struct Slice {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;

  bool whole() const {
    return global_shape.empty();
  }
  bool operator==(const Slice&) const = default;
};

/// One tensor, or one slice of a tensor, in a file of a checkpoint.
struct TensorRecord {
  std::string name;
  std::string dtype; // the name in the safetensors format
  std::vector<std::int64_t> shape; // shape in the file
  Slice slice;
  std::string file;
  /// The hash of name, dtype, shape, slice and data, see hash_of_tensor.
  std::uint64_t hash = 0;
};

struct FileEntry {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint64_t checksum = 0;
};

/// The optimizer without its tensors. The state of parameter P is stored as tensors named
/// "P/field", and numbers as tensors without dimensions.
struct OptimizerRecord {
  std::string kind; // "" when a checkpoint has none
  std::vector<state::OptimizerState::Group> groups;
  /// The fields that are numbers, not tensors.
  std::vector<std::string> number_fields;
};

/// What one rank has written, as a plain value that travels as text to the rank that commits.
struct RankFiles {
  int rank = 0;
  /// The error of this rank's part, with which the save fails; empty when it succeeded.
  std::string error;
  std::vector<FileEntry> files;
  std::vector<TensorRecord> model;
  std::vector<TensorRecord> optimizer_tensors;
  OptimizerRecord optimizer;
};

std::string to_text(const RankFiles& files);
/// Parses such text. Throws: CheckpointError when to_text did not make it.
RankFiles rank_files_from_text(const std::string& text);

/// The content of meta.json, which describes the whole checkpoint.
struct Meta {
  int version = 1;
  std::string torch_version;
  std::string tag;
  /// Increases by one with every save into a folder, which orders checkpoints without a clock.
  std::uint64_t sequence = 0;
  /// Whether this checkpoint is never removed to make room (SaveOptions::keep_every).
  bool for_good = false;
  std::optional<double> score; // SaveOptions::score
  std::string model;
  topology::Degrees degrees;
  std::string placement = "DPT";
  /// Module path -> pp rank; empty when the model was not partitioned.
  std::map<std::string, int> partition;
  /// A JSON document of the user; "null" when there is none.
  std::string user_content = "null";

  std::vector<FileEntry> files;
  std::vector<TensorRecord> tensors;
  std::vector<TensorRecord> optimizer_tensors;
  OptimizerRecord optimizer;
  /// A hash that does not depend on pp and dp degrees, nor on which rank wrote what.
  std::uint64_t parameter_hash = 0;
  std::uint64_t optimizer_hash = 0;
};

/// Returns indented JSON that ends with a checksum over the rest.
/// Throws: CheckpointError when user_content is no valid JSON.
std::string to_json(const Meta& meta);
/// Reads meta.json. Throws: CheckpointError naming `what` and the field that is wrong, or that the
/// checksum differs.
Meta meta_from_json(const std::string& text, const std::string& what);

std::uint64_t hash_of_tensor(const TensorRecord& record, std::uint64_t data_checksum);

/// Returns the sum of the tensors' hashes, which does not depend on their order or on which rank
/// holds which tensor.
std::uint64_t combined_hash(const std::vector<TensorRecord>& tensors);
/// Returns the hash of the tensors and of every parameter's options.
std::uint64_t combined_hash(
    const std::vector<TensorRecord>& tensors,
    const OptimizerRecord& optimizer);

} // namespace tessera::checkpoint
