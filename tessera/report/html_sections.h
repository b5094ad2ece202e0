#pragma once

#include <string>

#include "tessera/report/report.h"

namespace tessera::report {

// Parts of the page, each an HTML fragment. What the input lacks is said, never left out silently.

/// Name, state and figures at the head of the page.
std::string head_section(const ReportInput& input, const Summary& summary);
/// What was started, with which command, by which version, and each restart.
std::string run_section(const ReportInput& input, const Summary& summary);
/// The pipeline of a few recorded steps.
std::string pipeline_section(const timeline::Timeline& timeline);

/// A paragraph of side remark; escapes `text`.
std::string remark(const std::string& text);

} // namespace tessera::report
