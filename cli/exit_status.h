#pragma once

namespace tessera::cli {

/// The exit status when a signal stopped a run whose state is saved: the same command with --resume
/// continues it. The number is EX_TEMPFAIL of sysexits.h, "try again later".
inline constexpr int kResumableStatus = 75;

/// The exit status after a wrong configuration or command line, which would fail again in the same
/// way.
inline constexpr int kWrongUsageStatus = 2;

} // namespace tessera::cli
