#pragma once

#include <string>

#include "cli/train/job.h"

namespace tessera::cli {

struct CheckOptions {
  /// Processes that the job is checked for; 0: those of this launch, or the
  /// fewest that its degrees need.
  int ranks = 0;
  std::string cluster_file; // measured by `tessera probe`; "": none
};

/// Returns whether this process prints for all processes of its launch.
bool is_first_process();

/// Checks everything of a job that can be checked without training: data, tokenizer, model, layout
/// and batch, and that there is as much memory as it needs. Reads the files of the
/// data folder; the model is traced without its weights.
///
/// Returns: what memory each pipeline rank needs and how long the job takes,
/// as lines for people; what is not known is said to be unknown.
/// Not collective: needs neither MPI nor a session.
/// Throws: ConfigError with everything that was found wrong, beginning with
/// `origin`.
std::string check_job(const Job& job, const std::string& origin, const CheckOptions& options);

} // namespace tessera::cli
