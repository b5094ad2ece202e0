#pragma once

#include <map>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "tessera/checkpoint/reader.h"

#include "models/presets.h"

namespace tessera::cli {

/// Weights of a model on disk, in one of the forms that users have:
///   - a .safetensors file;
///   - a folder with model.safetensors, or with model.safetensors.index.json and the files that it
///     names, as transformers writes them;
///   - a checkpoint of `tessera train`, or its folder of checkpoints, of which the newest counts;
///   - FOLDER/best, where there is no such file: the checkpoint of that folder with the lowest
///   score.
///
/// Threads: one object, one thread. Not collective: each process reads for itself.
class Weights {
 public:
  /// Finds out which form it is. Throws: ConfigError that says what was looked for when it is none;
  /// CheckpointError for a damaged checkpoint.
  explicit Weights(const std::string& asked);

  /// The file or the folder.
  const std::string& path() const {
    return path_;
  }
  /// The folder in which config.json and tokenizer.model belong to the weights.
  const std::string& folder() const {
    return folder_;
  }
  /// None for files of another program.
  const std::optional<checkpoint::Checkpoint>& checkpoint() const {
    return checkpoint_;
  }

  /// All tensors, whole. Those of files are mapped: pages are read when they are touched. Those of
  /// a checkpoint are put together in memory.
  /// Throws: CheckpointError that names the file and what is wrong with it.
  std::map<std::string, at::Tensor> tensors() const;

 private:
  std::string path_;
  std::string folder_;
  std::optional<checkpoint::Checkpoint> checkpoint_;
  std::map<std::string, std::string> file_of_; // tensor -> file, with an index
};

/// What the config.json beside the weights describes. Throws: ConfigError when there is none, or it
/// is of a model that is not implemented.
models::Preset preset_beside(const Weights& weights);

/// The same of the config.json in a folder.
models::Preset preset_in(const std::string& folder);

/// The hash (models/data/data_hashes.h) of the tokenizer on whose ids a checkpoint was trained.
/// None for files of another program, and for a checkpoint that does not say.
std::optional<std::string> tokenizer_hash_of(const Weights& weights);

/// What is wrong with giving ids of a tokenizer's file to these weights, "" when it is the file
/// that they were trained with or when one of the two is not known. `from` is what the user named:
/// the file, or the folder of data that it is in. Throws: ConfigError when the file cannot be read.
std::string tokenizer_difference(
    const Weights& weights,
    const std::string& tokenizer_file,
    const std::string& from);

/// `path`, or the checkpoint that FOLDER/best stands for when there is nothing of this name.
/// Throws: ConfigError when FOLDER has checkpoints, none of which has a score.
std::string with_best_found(const std::string& path);

/// Checks that the pieces of every tensor of a checkpoint hold each of its elements once.
/// Throws: CheckpointError that names the tensor.
void check_pieces(const checkpoint::Checkpoint& from);

} // namespace tessera::cli
