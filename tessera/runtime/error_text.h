#pragma once

#include <exception>
#include <string>

namespace tessera::runtime {

/// "rank 2, module 'h.3', microbatch 1, forward: <message>"; an error that
/// already came from another rank keeps its own origin.
std::string
error_text(const std::exception_ptr& error, int rank, const std::string& where);

} // namespace tessera::runtime
