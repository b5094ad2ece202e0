#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

#include "cli/command.h"
#include "cli/generate/text_stream.h"
#include "cli/number_check.h"
#include "cli/weights/weights.h"
#include "models/data/files.h"
#include "models/data/tokenizer.h"
#include "models/generate.h"
#include "models/load.h"
#include "models/presets.h"
#include "models/published_config.h"
#include "models/registry.h"

namespace tessera::cli {

namespace generate_command {
namespace {

struct Options {
  std::string checkpoint;
  std::string model;
  std::string config;
  std::string tokenizer;
  std::string prompt;
  models::GenerateOptions generate;
};

models::Preset model_of(const Options& options, const Weights& weights) {
  if (!options.config.empty()) {
    return models::preset_of_options(
        options.config, models::options_from_published(read_file(options.config), options.config));
  }
  if (options.model.empty()) {
    const auto config = std::filesystem::path(weights.folder()) / "config.json";
    if (!std::filesystem::exists(config)) {
      throw ConfigError(
          str("there is no ",
              config.string(),
              " beside the weights; name the model's configuration with --config, or a preset "
              "with --model"));
    }
    return preset_beside(weights);
  }
  return models::find_preset(options.model);
}

void check_family(const models::Preset& preset) {
  if (!models::continues_a_text(preset.options)) {
    throw ConfigError(
        str(preset.name,
            " is of the family ",
            preset.family,
            ": only a gpt, llama, gptj, gpt_neo or gpt_neox continues a prompt",
            models::language_model_sizes(preset.options)
                ? "; `tessera eval` measures its loss on data, and `tessera export` writes it for "
                  "transformers"
                : ""));
  }
}

/// Before anything is printed. A model may have more ids than its tokenizer, as published
/// vocabularies are padded to a round number, but few.
void check_tokenizer(
    const Options& options,
    const Weights& weights,
    std::int64_t tokens,
    std::int64_t vocabulary) {
  if (tokens > vocabulary || vocabulary - tokens > vocabulary / 10) {
    throw ConfigError(
        str(options.tokenizer,
            " has ",
            tokens,
            " tokens, the model ",
            vocabulary,
            ": they do not belong together; name the tokenizer of the model's own data"));
  }
  const std::string other = tokenizer_difference(weights, options.tokenizer, options.tokenizer);
  if (!other.empty()) {
    throw ConfigError(str(other, "; name the tokenizer in the folder of their own data"));
  }
}

void run(Options options) {
  const Weights weights(options.checkpoint);
  const models::Preset preset = model_of(options, weights);
  check_family(preset);
  const auto sizes = models::language_model_sizes(preset.options).value();
  const data::Tokenizer tokenizer(options.tokenizer);
  check_tokenizer(options, weights, tokenizer.vocab_size(), sizes.vocabulary);
  const models::AnyModel model = models::make_model(preset);
  model.module->eval();
  models::load_parameters(*model.module, weights.tensors(), weights.path());
  auto ids = tokenizer.encode(options.prompt);
  if (ids.empty() && tokenizer.end_of_document() < 0) {
    throw ConfigError(
        str("--prompt is empty, and ",
            options.tokenizer,
            " has no end of a text that could stand before the first word; write a prompt"));
  }
  if (ids.empty()) {
    // What stands before the first word of a document in training.
    ids.push_back(tokenizer.end_of_document());
  }
  options.generate.context = sizes.positions;
  options.generate.stop = tokenizer.end_of_document();
  // A closed pipe is an error to report, not a signal to die of.
  std::signal(SIGPIPE, SIG_IGN);
  TextStream out(stdout, "standard output");
  out.show(options.prompt);
  const auto continued = models::generate(
      [&](const at::Tensor& input) { return model.forward({input}).at(0); },
      ids,
      options.generate,
      [&](const std::vector<std::int32_t>& made) {
        out.show(options.prompt + tokenizer.decode(made));
      });
  out.finish(options.prompt + tokenizer.decode(continued), "\n");
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto& generate = options->generate;
  app.add_option(
         "--checkpoint",
         options->checkpoint,
         "weights: a .safetensors file, a checkpoint, or a folder of either")
      ->required();
  auto* model = app.add_option_group("model", "what the weights are of");
  model->add_option("--model", options->model, "a preset of a model that continues text");
  model->add_option(
      "--config",
      options->config,
      "a config.json of a gpt2, llama, gptj, gpt_neo or gpt_neox; the one beside the weights when "
      "not given");
  model->require_option(0, 1);
  app.add_option("--tokenizer", options->tokenizer, "a tokenizer.model or tokenizer.json file")
      ->required();
  app.add_option("--prompt", options->prompt, "text to continue")->required();
  // Checked before the prompt is printed.
  app.add_option("--tokens", generate.tokens, "how many at most")
      ->check(non_negative_number())
      ->capture_default_str();
  app.add_option(
         "--temperature", generate.temperature, "0: always the likeliest; higher: more varied")
      ->check(non_negative_number())
      ->capture_default_str();
  app.add_option("--top-k", generate.top_k, "among the k likeliest; 0: among all")
      ->check(non_negative_number())
      ->capture_default_str();
  app.add_option("--seed", generate.seed, "same seed, same text")->capture_default_str();
  app.callback([options] { run(*options); });
}

const RegisterCommand registered({
    "generate",
    "continue a text with a trained model",
    set_up,
});

} // namespace
} // namespace generate_command

} // namespace tessera::cli
