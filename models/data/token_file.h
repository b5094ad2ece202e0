#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/hash.h"

#include "models/data/files.h"

namespace tessera::data {

/// Writes tokens as a file that TokenDataset maps: a header of 64 bytes, then
/// the ids, little-endian, two bytes each up to a vocabulary of 65536, else
/// four. The file appears whole or not at all.
///
///     byte 0  "TSRTOKEN"     8  version, u32      12  bytes per token, u32
///         16  tokens, u64   24  vocabulary, u64   32  FNV-1a of the ids, u64
///         40  zeros
///
/// Threads: one at a time.
class TokenFileWriter {
 public:
  /// Throws: ConfigError on a disk error; so do the others.
  TokenFileWriter(const std::string& path, std::int64_t vocab_size);

  /// Throws: ConfigError when an id is not in [0, vocab_size).
  void append(const std::vector<std::int32_t>& tokens);
  void append(std::int32_t token);
  std::uint64_t size() const {
    return count_;
  }
  /// Completes the file and gives it its name.
  void finish();

 private:
  std::string path_;
  FileWriter file_;
  std::int64_t vocab_size_;
  std::uint32_t token_bytes_;
  std::uint64_t count_ = 0;
  std::uint64_t hash_ = kHashSeed;
};

/// Writes such a file at once.
void write_token_file(
    const std::string& path,
    const std::vector<std::int32_t>& tokens,
    std::int64_t vocab_size);

/// The tokens of a file that is mapped into memory: opening it takes no memory, reading loads the
/// touched pages, and the ranks of one machine share them.
/// Threads: any thread. Not collective.
class TokenDataset {
 public:
  /// Throws: ConfigError that names the file and what is wrong with it:
  /// missing, another format or version, truncated, or (with `verify`, which
  /// reads everything) changed since it was written.
  explicit TokenDataset(const std::string& path, bool verify = true);

  const std::string& path() const {
    return file_.path();
  }
  std::uint64_t size() const {
    return count_;
  }
  std::int64_t vocab_size() const {
    return vocab_size_;
  }
  /// FNV-1a of the ids as bytes, as the header says it.
  std::uint64_t content_hash() const;

  /// Copies tokens [begin, begin + count) to `out`. Throws: InternalError
  /// outside of the file.
  void copy(std::uint64_t begin, std::uint64_t count, std::int64_t* out) const;

 private:
  const unsigned char* data() const;
  void check_header();

  MappedFile file_;
  std::uint64_t count_ = 0;
  std::uint32_t token_bytes_ = 0;
  std::int64_t vocab_size_ = 0;
};

} // namespace tessera::data
