#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/data/data_folder.h"

namespace tessera::data {

/// How far a preparation is.
struct PrepareProgress {
  const char* doing = ""; // "reading", "training the tokenizer", "tokenizing"
  std::uint64_t done_bytes = 0; // of the input files
  std::uint64_t total_bytes = 0; // 0: not known
  std::uint64_t tokens = 0; // written so far
};

struct PrepareOptions {
  std::string output; // folder, made when missing
  /// Files and folders (input/input_files.h) of plain text and JSON lines, also compressed with
  /// gzip (input/documents.h); none, and no tokens: the King James Version.
  std::vector<std::string> texts;
  std::int64_t vocab_size = 2048;
  bool force = false; // also when nothing has changed, and over other data
  /// A tokenizer in place of one that is trained on the texts; "": none.
  std::string tokenizer = {};
  std::string field = "text"; // of JSON lines
  /// In place of texts: files and folders of token ids (input/token_source.h), with `tokenizer`.
  std::vector<std::string> tokens = {};
  int token_bytes = 0; // of an id in a file that is not called .npy: 2 or 4
  int threads = 0; // that tokenize; 0: one for each processor, eight at most
  std::function<void(const PrepareProgress&)> progress = {}; // called several times a second
};

struct PrepareResult {
  bool skipped = false; // everything was there already
  std::uint64_t text_bytes = 0; // 0 of tokens
  std::uint64_t documents = 0; // of the input; 0 when tokens say no more than files
  std::uint64_t empty_documents = 0; // left out: JSON lines without a character
  std::uint64_t train_tokens = 0;
  std::uint64_t validation_tokens = 0;
  std::int64_t vocab_size = 0;
  std::string source; // for people: "King James Version", "3 files"
  std::vector<std::string> warnings; // of inputs that are likely not what they are said to be
};

/// Text -> tokenizer, training and validation tokens, where their documents begin, manifest. Of
/// sections of about 4 KiB that end with a line (Section) every twentieth is for validation; of
/// token files, of every 1024 ids. The tokenizer's end of a text, where it has one, stands behind
/// each document; token files are taken as they are, and a document ends with this id or its file.
///
/// The input is read as a stream, two or three times: memory does not depend on its size. A
/// tokenizer is trained on all of it up to 64 MB, else on evenly spread sections of as much.
///
/// The manifest is written last and holds hashes of text with options, of the token
/// files and of the tokenizer: when they match, nothing is done. A folder that
/// holds something else is left alone unless `force` is set: runs may depend on
/// it. The same inputs give the same bytes, with any number of threads.
/// Not collective: one rank prepares, the others wait for it.
/// Throws: ConfigError (an input that cannot be read, with file and line; a file that is no
/// tokenizer; too small a corpus, full disk, a folder with other data).
PrepareResult prepare_corpus(const PrepareOptions& options);

} // namespace tessera::data
