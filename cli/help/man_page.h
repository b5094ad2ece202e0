#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/help/described.h"

namespace tessera::cli {

/// Returns the man pages of a program as (file name, text): `tessera.1`, and one for each of its
/// commands, `tessera-data.1`, which has the commands below that as sections. `version` stands in
/// their last line: "tessera 0.1.0".
/// Source: groff_man(7).
std::vector<std::pair<std::string, std::string>> man_pages(
    const DescribedCommand& program,
    const std::string& version);

} // namespace tessera::cli
