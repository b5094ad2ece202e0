#pragma once

namespace tessera::diagnostics {

/// Who this process is, for the report of an error that nobody catches.
struct Reporter {
  int rank = 0;
  /// Ranks of other nodes give rank 0's node three seconds to report what failed
  /// on all of them.
  bool on_first_node = true;

  /// Before MPI has started: the rank that the launcher put into the
  /// environment, 0 without one.
  static Reporter of_environment();
};

/// From now on an error that leaves `main` (or a thread) ends the process at
/// once with status 1 and one message of the job: one write to stderr with the
/// error's text, on the rank that failed first. Ranks that fail by the same
/// error, or because of it, end without a word; so does one whose error has been
/// printed (ReportedConfigError). libtorch's C++ stack is left out unless
/// TORCH_SHOW_CPP_STACKTRACES=1. The launcher brings down ranks that still run.
///
/// A terminate handler of the script's own stays. A later call replaces the
/// reporter. Not collective. Threads: step thread only.
void report_uncaught_errors(const Reporter& reporter);

/// Called by a process that is about to end because of an error that every rank
/// has found alike: rank 0 alone prints it, and the launcher brings down a job
/// as soon as one process fails, so a rank that ended first could end the job
/// before rank 0 has spoken. Rank 0 returns at once; any other rank returns after
/// ten seconds, in which it is brought down where rank 0 found the error too.
/// What still runs then has the error for itself and must print it.
/// The rank is the one that the launcher put into the environment. Not
/// collective. Threads: any.
void let_rank_zero_speak();

} // namespace tessera::diagnostics
