#include "models/data/split_writer.h"

#include <filesystem>

#include "models/data/data_folder.h"

namespace tessera::data {

SplitWriter::SplitWriter(
    const std::string& folder,
    std::int64_t vocab_size,
    std::optional<std::int32_t> end_of_document)
    : train_{TokenFileWriter(folder + "/" + kTrainFile, vocab_size), DocumentIndexWriter(folder + "/" + kTrainDocumentsFile)},
      validation_{
          TokenFileWriter(folder + "/" + kValidationFile, vocab_size),
          DocumentIndexWriter(folder + "/" + kValidationDocumentsFile)},
      end_(end_of_document) {}

bool SplitWriter::holds_back() {
  return section_++ % kValidationEvery == kValidationEvery / 2;
}

void SplitWriter::add_section(const std::vector<std::int32_t>& tokens, bool begins, bool ends) {
  in_training_ = in_training_ && !begins;
  if (holds_back()) {
    validation_.begin_document();
    validation_.tokens.append(tokens);
  } else {
    if (!in_training_) {
      train_.begin_document();
    }
    in_training_ = true;
    train_.tokens.append(tokens);
  }
  if (ends && end_) {
    (in_training_ ? train_ : validation_).tokens.append(*end_);
  }
}

void SplitWriter::add_tokens(const std::vector<std::int32_t>& tokens, bool begins) {
  const bool held_back = holds_back();
  fresh_ = fresh_ || begins;
  bool part_begins = held_back;
  Part& part = held_back ? validation_ : train_;
  for (const auto token : tokens) {
    documents_ += fresh_ ? 1 : 0;
    // What follows in training belongs to a document that begins here, wherever here is.
    in_training_ = in_training_ && !fresh_;
    if (fresh_ || part_begins || (!held_back && !in_training_)) {
      part.begin_document();
    }
    in_training_ = in_training_ || !held_back;
    part.tokens.append(token);
    part_begins = false;
    fresh_ = end_ && token == *end_;
  }
}

void SplitWriter::finish() {
  train_.tokens.finish();
  train_.documents.finish(train_.tokens.size());
  validation_.tokens.finish();
  validation_.documents.finish(validation_.tokens.size());
}

void publish(
    const std::string& folder,
    const char* meaning,
    const std::string& bytes,
    SplitWriter& writer) {
  const std::filesystem::path here(folder);
  write_file((here / kUnfinishedFile).string(), "");
  for (const char* name : {kManifestFile, kTokenizerFile, kJsonTokenizerFile, kInteractionsFile}) {
    if (name != std::string(meaning)) {
      std::filesystem::remove(here / name);
    }
  }
  write_file((here / meaning).string(), bytes);
  writer.finish();
}

} // namespace tessera::data
