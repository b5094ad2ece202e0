#pragma once

#include <string>

#include "tessera/report/report.h"

namespace tessera::report {

// The sections of the page, each an HTML fragment. A section that misses input says so; it is never
// left out silently.

/// Returns the name, state and figures at the head of the page.
std::string head_section(const ReportInput& input, const Summary& summary);
/// Returns what was started, with which command and by which version, and each restart.
std::string run_section(const ReportInput& input, const Summary& summary);
/// Returns the pipeline of a few recorded steps, beside a simulation if there is one.
std::string pipeline_section(
    const timeline::Timeline& timeline,
    const timeline::Timeline& simulated);

/// Returns the beginning of a page up to its body; escapes `title`.
std::string page_begin(const std::string& title, const std::string& style);
std::string page_end();

/// Returns a paragraph for a side remark; escapes `text`.
std::string remark(const std::string& text);

} // namespace tessera::report
