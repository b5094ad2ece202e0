#include "models/data/data_folder.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/json/parse.h"

#include "models/data/document_begins.h"
#include "models/data/files.h"
#include "models/data/token_file.h"

namespace tessera::data {

namespace {

namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;

std::string in(const std::string& folder, const char* file) {
  return (fs::path(folder) / file).string();
}

template <typename Number>
void read_number(const Json& json, const char* key, Number& into) {
  const auto found = json.find(key);
  if (found != json.end() && found->is_number_unsigned()) {
    into = found->get<Number>();
  }
}

void read_text(const Json& json, const char* key, std::string& into) {
  const auto found = json.find(key);
  if (found != json.end() && found->is_string()) {
    into = found->get<std::string>();
  }
}

/// None when it is damaged or of another program.
std::optional<Manifest> manifest_of(const std::string& path, std::string* hashes = nullptr) {
  Json json;
  try {
    json = parse_json(read_file(path), path);
  } catch (const JsonError&) {
    return {};
  }
  Manifest manifest;
  if (json.is_object()) {
    read_number(json, "format", manifest.format);
    read_text(json, "source", manifest.source);
    read_text(json, "input_hash", manifest.input_hash);
    read_number(json, "text_bytes", manifest.text_bytes);
    read_number(json, "documents", manifest.documents);
    read_number(json, "vocab_size", manifest.vocab_size);
    read_number(json, "train_tokens", manifest.train_tokens);
    read_number(json, "validation_tokens", manifest.validation_tokens);
    if (hashes != nullptr && json.contains("hashes")) {
      *hashes = json["hashes"].dump();
    }
  }
  if (manifest.input_hash.empty()) {
    return {};
  }
  return manifest;
}

std::optional<std::uint64_t> documents_of_file(
    const std::string& index,
    const TokenDataset& tokens) {
  if (!fs::exists(index)) {
    return {};
  }
  return index_of(tokens, index).documents();
}

} // namespace

FolderFacts read_folder(const std::string& folder) {
  const TokenDataset train(in(folder, kTrainFile));
  const TokenDataset validation(in(folder, kValidationFile));
  FolderFacts facts;
  if (const std::string path = in(folder, kManifestFile); fs::exists(path)) {
    facts.manifest = manifest_of(path);
  }
  if (const std::string path = tokenizer_path(folder); fs::exists(path)) {
    facts.tokenizer = fs::path(path).filename().string();
  }
  if (train.vocab_size() != validation.vocab_size()) {
    throw ConfigError(
        str(validation.path(),
            " has a vocabulary of ",
            validation.vocab_size(),
            " tokens, the training data of ",
            train.vocab_size(),
            "; prepare both together"));
  }
  facts.vocab_size = train.vocab_size();
  facts.train_tokens = train.size();
  facts.validation_tokens = validation.size();
  facts.train_documents = documents_of_file(in(folder, kTrainDocumentsFile), train);
  facts.validation_documents = documents_of_file(in(folder, kValidationDocumentsFile), validation);
  return facts;
}

bool is_up_to_date(const std::string& folder, const std::string& input_hash, FolderFacts& facts) {
  const std::string path = in(folder, kManifestFile);
  if (!fs::exists(path)) {
    return false;
  }
  try {
    std::string hashes;
    const auto manifest = manifest_of(path, &hashes);
    if (!manifest || manifest->input_hash != input_hash || hashes.empty()) {
      return false;
    }
    facts = read_folder(folder);
    const TokenDataset train(in(folder, kTrainFile), false);
    const TokenDataset validation(in(folder, kValidationFile), false);
    return facts.train_documents && facts.validation_documents &&
           facts.vocab_size == manifest->vocab_size &&
           data_hashes_from_json(hashes, path) == hashes_of(train, validation, folder);
  } catch (const Error&) {
    // Missing or damaged: it is written again, and the result says so.
    return false;
  }
}

void check_that_nothing_is_lost(const std::string& folder, const std::string& input_hash) {
  const auto refuse = [&](const std::string& found) {
    throw ConfigError(
        str(folder,
            " ",
            found,
            "; name another folder, or pass --force to replace it (runs that were trained on it "
            "will not resume)"));
  };
  if (const std::string path = in(folder, kManifestFile); fs::exists(path)) {
    const auto manifest = manifest_of(path);
    if (!manifest) {
      refuse(str("has a ", kManifestFile, " that is damaged or of another program"));
    } else if (manifest->format < kFolderFormat) {
      refuse("was prepared by an earlier version of this program (training reads it as it is)");
    } else if (manifest->input_hash != input_hash) {
      refuse(
          str("holds other data: its text and options have the hash ",
              manifest->input_hash,
              ", those given here ",
              input_hash));
    }
    return;
  }
  if (fs::exists(in(folder, kUnfinishedFile))) {
    return;
  }
  for (const char* name :
       {kTokenizerFile, kJsonTokenizerFile, kInteractionsFile, kTrainFile, kValidationFile}) {
    if (fs::exists(in(folder, name))) {
      refuse(str("holds a ", name, " without a ", kManifestFile, " that says where it is from"));
    }
  }
}

std::string differences_from_manifest(const std::string& folder, const DataHashes& found) {
  const std::string path = in(folder, kManifestFile);
  std::string hashes;
  if (!fs::exists(path) || !manifest_of(path, &hashes) || hashes.empty()) {
    return "";
  }
  DataHashes expected = data_hashes_from_json(hashes, path);
  for (std::string DataHashes::*hash :
       {&DataHashes::train, &DataHashes::validation, &DataHashes::tokenizer}) {
    if ((found.*hash).empty()) {
      (expected.*hash).clear();
    }
  }
  return differences(expected, kManifestFile, found, folder);
}

void check_files_of_manifest(const std::string& folder, const DataHashes& found) {
  const std::string different = differences_from_manifest(folder, found);
  if (!different.empty()) {
    throw ConfigError(
        str("the files of the data folder '",
            folder,
            "' do not belong together:\n",
            different,
            "\nprepare it again (tessera data prepare --force)"));
  }
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  const DataHashes hashes = hashes_of(
      TokenDataset(in(folder, kTrainFile)), TokenDataset(in(folder, kValidationFile)), folder);
  const std::string tokenizer = fs::path(tokenizer_path(folder)).filename().string();
  const Json json{
      {"format", kFolderFormat},
      {"source", manifest.source},
      {"input_hash", manifest.input_hash},
      {"text_bytes", manifest.text_bytes},
      {"documents", manifest.documents},
      {"vocab_size", manifest.vocab_size},
      {"train_tokens", manifest.train_tokens},
      {"validation_tokens", manifest.validation_tokens},
      {"tokenizer", tokenizer},
      {"train", kTrainFile},
      {"validation", kValidationFile},
      {"train_documents", kTrainDocumentsFile},
      {"validation_documents", kValidationDocumentsFile},
      {"hashes", Json::parse(to_json(hashes))}};
  write_file(in(folder, kManifestFile), indented(json, 2) + "\n");
}

} // namespace tessera::data
