#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/data/document_index.h"
#include "models/data/token_file.h"

namespace tessera::data {

/// One of so many sections is for validation: the middle one, so that a small text has one as well.
constexpr std::size_t kValidationEvery = 20;

/// Divides tokens into the training and the validation file of a folder, each with the index of
/// its documents. What was held back from the middle of a document is a document of validation.
/// Threads: one at a time.
class SplitWriter {
 public:
  /// `end_of_document` is the id that stands behind a document; none: no id does.
  /// Throws: ConfigError on a disk error; so do the others.
  SplitWriter(
      const std::string& folder,
      std::int64_t vocab_size,
      std::optional<std::int32_t> end_of_document);

  /// The next section of the input; the end of a document is written behind its last one, to the
  /// file that has the document's text.
  void add_section(const std::vector<std::int32_t>& tokens, bool begins, bool ends);
  /// The next tokens of a token file as they are; a document begins behind each end of one.
  void add_tokens(const std::vector<std::int32_t>& tokens, bool begins);

  std::uint64_t train_tokens() const {
    return train_.tokens.size();
  }
  std::uint64_t validation_tokens() const {
    return validation_.tokens.size();
  }
  /// The number of documents that began in add_tokens.
  std::uint64_t documents() const {
    return documents_;
  }
  /// Completes the files and gives them their names.
  void finish();

 private:
  struct Part {
    TokenFileWriter tokens;
    DocumentIndexWriter documents;

    void begin_document() {
      documents.begin_at(tokens.size());
    }
  };

  bool holds_back();

  Part train_;
  Part validation_;
  std::optional<std::int32_t> end_;
  std::size_t section_ = 0;
  bool in_training_ = false; // some of the document in hand
  bool fresh_ = true; // the next token begins a document
  std::uint64_t documents_ = 0;
};

/// Gives the files of a folder their names, and `bytes`, which say what the ids mean, to the file
/// `meaning` beside them. Before the old files go: an older manifest must not vouch for files that
/// are about to change. Throws: ConfigError on a disk error.
void publish(
    const std::string& folder,
    const char* meaning,
    const std::string& bytes,
    SplitWriter& writer);

} // namespace tessera::data
