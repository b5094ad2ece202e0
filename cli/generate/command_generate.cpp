#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/safetensors.h"

#include "cli/command.h"
#include "cli/generate/text_stream.h"
#include "models/data/files.h"
#include "models/data/tokenizer.h"
#include "models/generate.h"
#include "models/gpt.h"
#include "models/load.h"
#include "models/presets.h"
#include "models/published_config.h"

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

models::GptOptions model_options(Options options) {
  if (options.config.empty() && options.model.empty()) {
    options.config =
        (std::filesystem::path(options.checkpoint).parent_path() / "config.json").string();
    if (!std::filesystem::exists(options.config)) {
      throw ConfigError(
          str("there is no ",
              options.config,
              " beside the weights; name the model's configuration with --config, or a preset "
              "with --model"));
    }
  }
  if (!options.config.empty()) {
    return models::gpt_from_published(read_file(options.config), options.config);
  }
  const auto& preset = models::find_preset(options.model);
  if (preset.family != "gpt") {
    throw ConfigError(
        str("--model ",
            options.model,
            " is of the family ",
            preset.family,
            ": only a gpt continues a prompt"));
  }
  return std::get<models::GptOptions>(preset.options);
}

void run(Options options) {
  const auto sizes = model_options(options);
  const data::Tokenizer tokenizer(options.tokenizer);
  if (tokenizer.vocab_size() > sizes.vocab_size) {
    throw ConfigError(
        str(options.tokenizer,
            " has ",
            tokenizer.vocab_size(),
            " tokens, the model ",
            sizes.vocab_size,
            ": they do not belong together"));
  }
  models::Gpt model(sizes);
  model->eval();
  models::load_parameters(
      *model, checkpoint::read_safetensors(options.checkpoint), options.checkpoint);
  auto ids = tokenizer.encode(options.prompt);
  if (ids.empty()) {
    // What stands before the first word of a document in training.
    ids.push_back(tokenizer.end_of_document());
  }
  options.generate.context = sizes.n_positions;
  options.generate.stop = tokenizer.end_of_document();
  // A closed pipe is an error to report, not a signal to die of.
  std::signal(SIGPIPE, SIG_IGN);
  TextStream out(stdout, "standard output");
  out.show(options.prompt);
  const auto continued = models::generate(
      [&](const at::Tensor& input) { return model(input); },
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
  app.add_option("--checkpoint", options->checkpoint, "weights, a .safetensors file")->required();
  auto* model = app.add_option_group("model", "what the weights are of");
  model->add_option("--model", options->model, "a gpt preset");
  model->add_option(
      "--config",
      options->config,
      "a config.json of the gpt2 kind; the one beside the weights when not given");
  model->require_option(0, 1);
  app.add_option("--tokenizer", options->tokenizer, "a tokenizer.model file")->required();
  app.add_option("--prompt", options->prompt, "text to continue")->required();
  app.add_option("--tokens", generate.tokens, "how many at most")->capture_default_str();
  app.add_option(
         "--temperature", generate.temperature, "0: always the likeliest; higher: more varied")
      ->capture_default_str();
  app.add_option("--top-k", generate.top_k, "among the k likeliest; 0: among all")
      ->capture_default_str();
  app.add_option("--seed", generate.seed, "same seed, same text")->capture_default_str();
  app.callback([options] { run(*options); });
}

const RegisterCommand registered({
    "generate",
    "continue a text with a trained gpt",
    set_up,
});

} // namespace
} // namespace generate_command

} // namespace tessera::cli
