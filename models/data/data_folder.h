#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::data {

/// Files of a prepared folder.
constexpr const char* kTokenizerFile = "tokenizer.model"; // SentencePiece, or
constexpr const char* kJsonTokenizerFile = "tokenizer.json"; // of Hugging Face
constexpr const char* kInteractionsFile = "interactions.json"; // or of pairs (interactions.h)
constexpr const char* kTrainFile = "train.tokens";
constexpr const char* kValidationFile = "validation.tokens";
constexpr const char* kTrainDocumentsFile = "train.documents";
constexpr const char* kValidationDocumentsFile = "validation.documents";
constexpr const char* kManifestFile = "data.json";
/// There while the others are being written.
constexpr const char* kUnfinishedFile = "data.json.unfinished";

/// The file that says what the ids of a folder mean: tokenizer.model, or tokenizer.json or
/// interactions.json where there is no other; the path of the first when there is none.
std::string tokenizer_path(const std::string& folder);

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

/// A prepared folder as `tessera data show` tells of it.
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

/// Whether a folder holds whole and undamaged what inputs of this hash give; then `facts` says
/// what.
bool is_up_to_date(const std::string& folder, const std::string& input_hash, FolderFacts& facts);

/// Throws: ConfigError for a folder whose files are not what inputs of this hash gave, nor what an
/// interrupted preparation left.
void check_that_nothing_is_lost(const std::string& folder, const std::string& input_hash);

/// Writes data.json beside the other files, which are there and whole.
void write_manifest(const std::string& folder, const Manifest& manifest);

/// Part of the input hash: it rises when the meaning of the files changes.
constexpr int kFolderFormat = 2;

} // namespace tessera::data
