#pragma once

#include <string>

#include "models/data/token_file.h"

namespace tessera::data {

/// Hashes (FNV-1a, hexadecimal) of what a prepared folder holds: the ids of both token
/// files and the bytes of the tokenizer.
struct DataHashes {
  std::string train;
  std::string validation;
  std::string tokenizer;

  bool operator==(const DataHashes&) const = default;
};

/// Returns the hash of a tokenizer's file. Throws: ConfigError when it cannot be read.
std::string hash_of_tokenizer(const std::string& path);

/// Returns the hashes of a folder whose token files are open. Reads the tokenizer.
/// Not collective. Throws: ConfigError when the tokenizer cannot be read.
DataHashes
hashes_of(const TokenDataset& train, const TokenDataset& validation, const std::string& folder);

/// Serialise the fields of DataHashes as a JSON object, and read them.
std::string to_json(const DataHashes& hashes);
/// Throws: Error naming `origin` and the field.
DataHashes data_hashes_from_json(const std::string& json, const std::string& origin);

/// Returns a line for each file that differs, with both hashes; "" when none does.
std::string differences(
    const DataHashes& before,
    const std::string& before_name,
    const DataHashes& now,
    const std::string& now_name);

} // namespace tessera::data
