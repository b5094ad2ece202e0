#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

struct PrepareOptions {
  std::string output; // folder, made when missing
  std::vector<std::string> texts; // files; none: the King James Version
  std::int64_t vocab_size = 2048;
  bool force = false; // also when nothing has changed, and over other data
  /// A SentencePiece model in place of one that is trained on the texts; "": none.
  std::string tokenizer = {};
};

/// Files in the output folder.
constexpr const char* kTokenizerFile = "tokenizer.model";
constexpr const char* kTrainFile = "train.tokens";
constexpr const char* kValidationFile = "validation.tokens";
constexpr const char* kManifestFile = "data.json";
/// There while the others are being written.
constexpr const char* kUnfinishedFile = "data.json.unfinished";

struct PrepareResult {
  bool skipped = false; // everything was there already
  std::uint64_t text_bytes = 0;
  std::uint64_t train_tokens = 0;
  std::uint64_t validation_tokens = 0;
  std::int64_t vocab_size = 0;
  std::string source; // for people: "King James Version", "3 files"
};

/// Text -> tokenizer, training and validation tokens, manifest. Of sections of
/// about 4 KiB that end with a line every twentieth is for validation. The
/// manifest is written last and holds hashes of text with options, of the token
/// files and of the tokenizer: when they match, nothing is done. A folder that
/// holds something else is left alone unless `force` is set: runs may depend on
/// it. The same inputs give the same bytes.
/// Not collective: one rank prepares, the others wait for it.
/// Throws: ConfigError (unreadable text, a tokenizer that is no SentencePiece model or has no piece
/// for the end of a document, too small a corpus, full disk, a folder with other data).
PrepareResult prepare_corpus(const PrepareOptions& options);

} // namespace tessera::data
