#pragma once

#include <chrono>

namespace tessera::diagnostics {

/// Returns whether this rank is the first of its node to report that the job fails: one
/// message is enough, and a rank that fails because another did has a worse one.
/// A rank with `patience` first gives others that time to be it. One that is not
/// the first returns when the first has called `failure_reported`, or after a
/// second. Alone on its node, or without a published board, a rank is the first after its
/// patience. Not collective. Threads: any thread.
bool claim_failure_report(std::chrono::milliseconds patience) noexcept;
void failure_reported() noexcept;

/// MPI's launcher ends the other ranks by SIGTERM when one has died. From now on
/// a rank that gets this signal first says which rank of its node has died and in
/// what, unless the script has a handler of its own for it. A rank that exits is
/// not counted as dead. Not collective. Threads: step thread only.
void report_deaths_on_sigterm();

} // namespace tessera::diagnostics
