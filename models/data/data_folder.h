#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/data/data_hashes.h"
#include "models/data/folder_files.h"

namespace tessera::data {

/// What data.json says.
struct Manifest {
  int format = 0; // of the folder; 1: without indexes of documents
  std::string source; // for people
  std::string input_hash; // of text and options
  std::uint64_t text_bytes = 0;
  std::uint64_t documents = 0;
  std::int64_t vocab_size = 0;
  std::uint64_t train_tokens = 0;
  std::uint64_t validation_tokens = 0;
};

/// What `tessera data show` prints of a prepared folder.
struct FolderFacts {
  std::optional<Manifest> manifest; // none: not made by `tessera data prepare`
  std::string tokenizer; // the file's name; "": none
  std::int64_t vocab_size = 0;
  std::uint64_t train_tokens = 0;
  std::uint64_t validation_tokens = 0;
  /// None of a folder that was prepared before documents were kept.
  std::optional<std::uint64_t> train_documents;
  std::optional<std::uint64_t> validation_documents;
};

/// Reads and checks all files but the tokenizer. Throws: ConfigError that names the file which is
/// missing, damaged or does not belong to the others.
FolderFacts read_folder(const std::string& folder);

/// Returns whether a folder holds, whole and undamaged, the data that inputs of this hash give. If
/// so, `facts` is set.
bool is_up_to_date(const std::string& folder, const std::string& input_hash, FolderFacts& facts);

/// Throws: ConfigError for a folder whose files are not what inputs of this hash gave, nor what an
/// interrupted preparation left.
void check_that_nothing_is_lost(const std::string& folder, const std::string& input_hash);

/// Returns a line for each file whose hash is not that of the folder's data.json; "" where none
/// differs, or where no data.json says hashes (a folder of somebody's own making). Empty hashes of
/// `found` are not compared. Throws: Error for hashes in data.json of another form.
std::string differences_from_manifest(const std::string& folder, const DataHashes& found);

/// Throws: ConfigError for files that differ so: the ids of one tokenizer are other words to
/// another.
void check_files_of_manifest(const std::string& folder, const DataHashes& found);

/// Writes data.json beside the other files, which are there and whole.
void write_manifest(const std::string& folder, const Manifest& manifest);

/// The version of the folder's form, a part of the input hash. It is raised when the meaning of the
/// files changes.
constexpr int kFolderFormat = 2;

} // namespace tessera::data
