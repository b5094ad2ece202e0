#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/data/corpus.h"
#include "models/data/input/line_reader.h"

namespace tessera::data {

/// A part of a document: about 4 KiB that end with a line, the whole of a document that is not
/// longer, at most about 1 MiB of lines without an end. Valid UTF-8, never empty.
struct Section {
  std::string text;
  bool begins = false; // its document
  bool ends = false; // its document
};

/// Documents one after the other, section by section.
/// Threads: one at a time.
class Documents {
 public:
  virtual ~Documents() = default;
  /// False at the end. Throws: ConfigError with file and line for what cannot be read.
  virtual bool next(Section& section) = 0;
  /// How far it is. Units: bytes of the files, as they lie on the disk.
  virtual std::uint64_t position_bytes() const = 0;
  /// Documents without a character, which next() left out so far.
  virtual std::uint64_t empty_documents() const {
    return 0;
  }
};

/// Documents that are in memory. They stay the caller's.
std::unique_ptr<Documents> documents_of(const std::vector<Document>& documents);

/// Documents of files, plain or compressed with gzip. A file called .jsonl or .ndjson (or
/// .jsonl.gz, .ndjson.gz) has one in each line: the text under `field` of the line's JSON object.
/// Every other file is one document of plain text. Throws: ConfigError for a file called .json,
/// which is neither.
std::unique_ptr<Documents> documents_in(std::vector<std::string> files, std::string field);

/// What a text is divided into, in order.
std::vector<std::string_view> split_sections(std::string_view text);

/// The size from which a section ends with the next line. Units: bytes.
constexpr std::size_t kSectionBytes = 4096;

} // namespace tessera::data
