#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/records.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/state/optimizer_state.h"
#include "tessera/topology/rank_layout.h"

namespace tessera::checkpoint {

/// What one rank contributes. A tensor that several ranks hold is contributed
/// by one of them, its owner (rdp rank 0, say).
struct RankContent {
  /// Parameters and buffers by name.
  NamedTensors model;
  std::optional<state::OptimizerState> optimizer;
  /// Which box of a parameter this rank holds, for those that are divided
  /// inside a tensor-parallel group. State tensors of the parameter's shape
  /// are divided as it is.
  std::map<std::string, Slice> slices;
  /// What belongs to this rank alone, such as random number generator states;
  /// comes back only to the rank of this number.
  NamedTensors rank_tensors;
};

/// What rank 0 knows for all.
struct SaveInfo {
  std::string model; // name, checked at load
  topology::Degrees degrees;
  std::string placement = "DPT";
  std::map<std::string, int> partition; // module path -> pp rank
  std::string user_content = "null"; // a JSON document
  /// The oldest are removed once the new one is complete; 0 keeps all.
  int num_kept_checkpoints = 0;
};

struct SaveResult {
  std::string path;
  std::uint64_t sequence = 0;
  std::uint64_t parameter_hash = 0;
  std::uint64_t optimizer_hash = 0;
  /// The checkpoint is complete; what is said here went wrong afterwards.
  std::vector<std::string> warnings;
};

/// Writes one checkpoint. Holds no communication: between the three steps the
/// caller makes ranks wait for each other and gathers.
///
///     Writer writer(dir, "step_100");
///     if (rank == 0) writer.begin();                 // then a barrier
///     RankFiles mine = writer.write_rank_files(rank, coordinates, content);
///     // gather to_text(mine) on rank 0
///     if (rank == 0) writer.commit(all, info);
///
/// Until commit returns, or whenever a step throws or the process dies, the
/// checkpoints that were there before are as they were, and `newest` names the
/// one it named. The folder is one that all ranks see.
///
/// Threads: one at a time on each rank. Not collective, see above.
/// Source: Karakus et al. 2021, section 3.2.3 (partial checkpoints); the
/// names of folders and files are Tessera's own.
class Writer {
 public:
  /// Throws: CheckpointError for a tag that cannot be a folder's name.
  Writer(std::string directory, std::string tag, FileSystem& files = real_file_system());

  /// Rank 0, before all others: makes the folder, brings it in order after an
  /// interrupted save.
  /// Throws: CheckpointError.
  void begin();

  /// Any rank: its model_P_T_R.safetensors, optimizer_P_T_R.safetensors and
  /// rank_N.safetensors, each only when it has something to hold. With `full`,
  /// for the rank that was given the whole model: model.safetensors,
  /// optimizer.safetensors. A failure is in the result's `error`, so that it
  /// reaches rank 0 with the rest.
  RankFiles write_rank_files(
      int rank,
      const topology::Coordinates& at,
      const RankContent& content,
      bool full = false);

  /// Rank 0, with every rank's result: makes the checkpoint complete and the
  /// newest, then removes the oldest beyond the number to keep.
  /// Throws: CheckpointError naming the ranks that failed and why, tensors
  /// given twice or with a part missing, files that rank 0 does not see.
  SaveResult commit(const std::vector<RankFiles>& ranks, const SaveInfo& info);

  /// Rank 0: removes what was written of this checkpoint, as commit does when
  /// it fails.
  void abandon();

 private:
  Meta merge(const std::vector<RankFiles>& ranks, const SaveInfo& info) const;
  std::vector<std::string> remove_oldest(int num_kept);

  std::string directory_;
  std::string tag_;
  std::string saving_;
  FileSystem& files_;
};

} // namespace tessera::checkpoint
