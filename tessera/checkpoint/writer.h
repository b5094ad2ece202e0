#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/records.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/state/optimizer_state.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::checkpoint {

/// What one rank contributes to a checkpoint. A tensor that several ranks hold is contributed by
/// one of them, its owner (for example rdp rank 0).
struct RankContent {
  /// Parameters and buffers by name.
  NamedTensors model;
  std::optional<state::OptimizerState> optimizer;
  /// The slice that this rank holds of each parameter that is divided inside a tensor-parallel
  /// group. State tensors of the parameter's shape are divided in the same way.
  std::map<std::string, Slice> slices;
  /// Tensors that belong to this rank alone, such as random number generator states; only the rank
  /// of this number loads them.
  NamedTensors rank_tensors;
};

/// What rank 0 provides for all ranks.
struct SaveInfo {
  std::string model; // name, checked at load
  topology::Degrees degrees;
  std::string placement = "DPT";
  std::map<std::string, int> partition; // module path -> pp rank
  std::string user_content = "null"; // a JSON document
  /// What is removed once the new one is complete.
  Retention retention;
  std::optional<double> score; // a finite number
};

struct SaveResult {
  std::string path;
  std::uint64_t sequence = 0;
  std::uint64_t parameter_hash = 0;
  std::uint64_t optimizer_hash = 0;
  /// Warnings about what went wrong after the checkpoint was complete.
  std::vector<std::string> warnings;
};

/// Writes one checkpoint. It does not communicate: between the three steps the caller makes ranks
/// wait for each other and gathers their results.
///
///     Writer writer(dir, "step_100");
///     if (rank == 0) writer.begin();                 // then a barrier
///     RankFiles mine = writer.write_rank_files(rank, coordinates, content);
///     // gather to_text(mine) on rank 0
///     if (rank == 0) writer.commit(all, info);
///
/// Until commit returns, or whenever a step throws or the process dies, the earlier checkpoints are
/// unchanged, and `newest` names the same one as before. All ranks see the folder.
///
/// Threads: one at a time on each rank. Not collective, see above.
/// Source: Karakus et al. 2021, section 3.2.3 (partial checkpoints); the names of folders and files
/// are Tessera's own.
class Writer {
 public:
  /// Throws: CheckpointError for a tag that cannot be a folder's name.
  Writer(std::string directory, std::string tag, FileSystem& files = real_file_system());

  /// Makes the folder and repairs it after an interrupted save. Rank 0 calls it before all others.
  /// Throws: CheckpointError.
  void begin();

  /// Writes this rank's model_P_T_R.safetensors, optimizer_P_T_R.safetensors and
  /// rank_N.safetensors, each only when it has content. With `full`, the rank that was given the
  /// whole model writes model.safetensors and optimizer.safetensors. An error is in the result's
  /// `error`, so that it reaches rank 0 with the rest.
  RankFiles write_rank_files(
      int rank,
      const topology::Coordinates& at,
      const RankContent& content,
      bool full = false);

  /// Makes the checkpoint complete and the newest, then removes those that the retention does not
  /// keep. Rank 0 calls it with every rank's result.
  /// Throws: CheckpointError naming the ranks that failed and why, tensors given twice or with a
  /// part missing, files that rank 0 does not see.
  SaveResult commit(const std::vector<RankFiles>& ranks, const SaveInfo& info);

  /// Removes what was written of this checkpoint, as commit does when it fails. Rank 0 calls it.
  void abandon();

 private:
  Meta merge(const std::vector<RankFiles>& ranks, const SaveInfo& info) const;
  std::vector<std::string> remove_oldest(const Retention& retention);

  std::string directory_;
  std::string tag_;
  std::string saving_;
  FileSystem& files_;
};

} // namespace tessera::checkpoint
