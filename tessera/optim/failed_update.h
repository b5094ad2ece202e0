#pragma once

#include <exception>
#include <optional>
#include <string>

#include "tessera/context/context.h"

namespace tessera::optim {

/// Returns what one rank's failed update says on the others: "rank 1: ..."; nullopt without an
/// error. Not collective.
std::optional<std::string> failure_text(const Context& context, const std::exception_ptr& error);

} // namespace tessera::optim
