#pragma once

namespace tessera::cli {

/// What the program ends with when a signal stopped a run whose state is saved:
/// the same command with --resume goes on. The number is EX_TEMPFAIL of
/// sysexits.h, "try again later".
inline constexpr int kResumableStatus = 75;

/// A wrong configuration or command line: the program ends with this status,
/// and would do so again.
inline constexpr int kWrongUsageStatus = 2;

} // namespace tessera::cli
