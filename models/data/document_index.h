#pragma once

#include <cstdint>
#include <string>

#include "tessera/base/hash.h"

#include "models/data/files.h"

namespace tessera::data {

/// Writes where the documents of a token file begin, as a file that DocumentIndex maps: a header
/// of 64 bytes, then for each document the number of its first token, u64, little-endian,
/// ascending. The file appears whole or not at all.
///
///     byte 0  "TSRDOCUM"   8  version, u32   12  zero, u32
///         16  documents, u64   24  tokens of the token file, u64   32  FNV-1a of the numbers, u64
///         40  zeros
///
/// Threads: one at a time.
class DocumentIndexWriter {
 public:
  /// Throws: ConfigError on a disk error; so do the others.
  explicit DocumentIndexWriter(const std::string& path);

  /// Adds a document that begins at this token. It replaces the document before it where that one
  /// begins at the same token, and so has no tokens.
  void begin_at(std::uint64_t token);
  /// Completes the file and gives it its name.
  void finish(std::uint64_t tokens);
  /// Returns the number of documents when the last one ends at `tokens`.
  std::uint64_t documents(std::uint64_t tokens) const {
    return written_ + (pending_ && last_ < tokens ? 1 : 0);
  }

 private:
  void write_pending();

  FileWriter file_;
  bool pending_ = false;
  std::uint64_t last_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t hash_ = kHashSeed;
};

/// Where documents begin, mapped. Tokens before the first document belong to none.
/// Threads: any thread. Not collective.
class DocumentIndex {
 public:
  /// Reads and checks the whole file. Throws: ConfigError that names the file and what is wrong
  /// with it: missing, of another format or version, truncated, changed since it was written,
  /// numbers that do not rise.
  explicit DocumentIndex(const std::string& path);

  std::uint64_t documents() const {
    return count_;
  }
  /// The number of tokens of the token file.
  std::uint64_t tokens() const {
    return tokens_;
  }
  /// The first token of a document. Throws: InternalError beyond the last one.
  std::uint64_t begin_of(std::uint64_t document) const;

 private:
  MappedFile file_;
  std::uint64_t count_ = 0;
  std::uint64_t tokens_ = 0;
};

} // namespace tessera::data
