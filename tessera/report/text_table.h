#pragma once

#include <string>
#include <vector>

namespace tessera::report {

/// A table for the terminal. Columns whose cells all begin with a digit, a sign or a point (or are
/// "-") are aligned to the right, others to the left.
struct TextTable {
  std::vector<std::string> headers;
  std::vector<std::vector<std::string>> rows; // each as long as headers
};

/// Returns lines of plain text with columns two spaces apart and a rule under the headers.
/// Throws: InternalError when a row has another length than the headers.
std::string to_text(const TextTable& table);

} // namespace tessera::report
