#pragma once

namespace tessera::cli {

/// The script for /bin/sh that runs the program of each rank on its share of the host's cores and
/// reports how it ended; see docs/launch.md. It reads TESSERA_SHARE_CORES, which the program does
/// not get: empty leaves the program where mpirun put it.
extern const char* const kRankScript;

} // namespace tessera::cli
