#pragma once

#include <chrono>
#include <functional>

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

/// How ranks hear that rank 0 reports an error.
struct RankZeroNews {
  std::function<void()> tell; // rank 0; must not block
  /// Returns whether rank 0 has told, as soon as it has or when the time is over.
  std::function<bool(std::chrono::milliseconds)> heard;
};
/// From now on ranks hear of each other by this. Not collective. Threads: the main thread.
void set_rank_zero_news(RankZeroNews news);

/// Called by a process that is about to end because of an error that every rank has found alike:
/// rank 0 alone prints it. Returns whether this rank has to print: rank 0 returns true at once and
/// tells the others, which return false when they hear that, so that all end together. A rank that
/// hears nothing for four seconds has the error for itself and returns true; until MPI has started
/// nothing is heard, and the others wait ten seconds, in which the launcher brings them down when
/// rank 0 ends. The rank is the one that the launcher put into the environment. Not collective.
/// Threads: any.
bool speaks_for_all();

} // namespace tessera::diagnostics
