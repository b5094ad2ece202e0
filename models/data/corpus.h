#pragma once

#include <string>
#include <vector>

namespace tessera::data {

/// A text with a name. Lines end in '\n'.
struct Document {
  std::string name;
  std::string text;
};

/// The King James Version, from Debian's package bible-kjv (its program
/// `bible` prints the text): one document a book, a line a verse without its
/// number, each chapter under its heading. Public domain, 4.1 MB of English.
/// `program` is looked up in PATH.
/// Throws: ConfigError that names the package when the program is missing, or
/// says how the output differs from what is expected.
std::vector<Document> read_king_james_bible(const std::string& program = "bible");

/// From the program's output; for tests.
std::vector<Document> parse_king_james_bible(const std::string& output);

} // namespace tessera::data
