#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera {

struct SaveOptions {
  /// true: the whole model in one file each for model and optimizer, gathered on one rank's host;
  /// false: each rank writes what it owns.
  bool full = false;
  /// The oldest checkpoints of the folder are removed once this one is complete; 0 keeps all.
  int num_kept_checkpoints = 0;
  /// Every so many-th save into the folder is marked, and is never removed; 0: none.
  int keep_every = 0;
  /// The checkpoint of the folder with the lowest `score` is not removed while it is that.
  bool keep_best = false;
  /// How good the state is, the lower the better: the loss of a validation, say. A score that is
  /// not finite is as none.
  std::optional<double> score = std::nullopt;
  /// A JSON document of the script's own (steps, place in the data, ...).
  std::string user_content = "null";
};

struct Saved {
  std::string path;
  /// The hash of parameters and optimizer state, independent of the layout of ranks; meta.json
  /// holds it too.
  std::string state_hash;
  std::vector<std::string> warnings;
};

struct LoadOptions {
  /// "" loads the newest whole checkpoint, with a warning for each torn one that is skipped.
  std::string tag;
  bool optimizer = true;
  /// The number of steps done and the random state of each rank. false: those of this run stay, as
  /// for a training that begins with the parameters of another one.
  bool progress = true;
  /// false: what does not fit is passed over. Parameters and buffers that the checkpoint lacks, or
  /// has in another shape, stay as they are, and a warning lists them with the names that only the
  /// checkpoint has; it may be another model's. The optimizer's state still has to fit.
  bool strict = true;
  /// Given the whole state that the checkpoint holds, on the host, returns that of this model: for
  /// names and shapes of another program's. Every rank then reads all of the parameters and buffers
  /// and keeps its part; without it none reads more than that. The optimizer's state is not
  /// translated, so where names change write `optimizer = false`. Alike on all ranks.
  std::function<std::map<std::string, at::Tensor>(std::map<std::string, at::Tensor> state)>
      translate_function = {};
};

struct Loaded {
  std::string path;
  std::string user_content;
  std::string state_hash;
  std::vector<std::string> warnings;
};

} // namespace tessera
