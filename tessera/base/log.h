#pragma once

#include <string>

namespace tessera::log {

/// Messages go to standard error, one line each: "tessera: warning: ..." from rank 0 and
/// "tessera: rank 3: warning: ..." from another. The environment variable TESSERA_LOG chooses what
/// is written: "debug", "info" (the default), "warning", "error" or "off".
/// Threads: any.

/// Names the rank of this process in later messages. Rank 0, also that of a process that never
/// says, writes no rank.
void set_rank(int rank);

void debug(const std::string& text);
void info(const std::string& text);
void warning(const std::string& text);
void error(const std::string& text);

} // namespace tessera::log
