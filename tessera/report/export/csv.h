#pragma once

#include <string>

#include "tessera/report/run_log.h"

namespace tessera::report {

/// Returns the steps and validations of a log as comma-separated values (RFC 4180), one record a
/// line behind a line of names; docs/run_log.md lists the columns and their units. Numbers have
/// the fewest digits that read back as the same double; one that is not finite is nan, inf or
/// -inf; what a log does not have is empty.
std::string to_csv(const RunLog& log);

} // namespace tessera::report
