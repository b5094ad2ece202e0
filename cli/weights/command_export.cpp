#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/deferred_init/delayed_init.h"

#include "cli/command.h"
#include "cli/weights/export.h"
#include "cli/weights/weights.h"
#include "models/data/data_folder.h"
#include "models/data/files.h"
#include "models/data/tokenizer.h"
#include "models/load.h"
#include "models/registry.h"

namespace tessera::cli {

namespace export_command {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string weights;
  std::string folder;
  std::string tokenizer;
  std::string precision = "f32";
};

at::ScalarType type_of(const std::string& precision) {
  return precision == "bf16" ? at::kBFloat16 : precision == "fp16" ? at::kHalf : at::kFloat;
}

/// A shared parameter once, under its first name: that is what transformers expects of tied
/// weights.
NamedTensors each_once(
    const torch::nn::Module& model,
    const std::map<std::string, at::Tensor>& tensors,
    at::ScalarType type) {
  NamedTensors once;
  std::set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      const at::Tensor& from = tensors.at(item.key());
      once.emplace_back(item.key(), from.to(type));
      if (from.isfinite().all().item<bool>() && !once.back().second.isfinite().all().item<bool>()) {
        throw ConfigError(
            str("'",
                item.key(),
                "' has numbers up to ",
                from.abs().max().item<double>(),
                ", which fp16 cannot hold; write --precision bf16 or f32"));
      }
    }
  }
  return once;
}

void run(const Options& options) {
  if (fs::exists(options.folder) &&
      (!fs::is_directory(options.folder) || !fs::is_empty(options.folder))) {
    throw ConfigError(
        str("'", options.folder, "' exists and is no empty folder; name another one"));
  }
  const Weights weights(options.weights);
  const models::Preset preset = preset_beside(weights);
  std::string tokenizer = options.tokenizer;
  if (tokenizer.empty() && fs::exists(data::tokenizer_path(weights.folder()))) {
    tokenizer = data::tokenizer_path(weights.folder());
  }
  const std::string config = read_file((fs::path(weights.folder()) / "config.json").string());
  const std::string vocabulary = tokenizer.empty() ? "" : read_file(tokenizer);
  models::AnyModel model;
  {
    const delay_param_initialization shapes_only;
    model = models::make_model(preset);
  }
  const NamedTensors tensors = each_once(
      *model.module,
      models::parameters_from(*model.module, weights.tensors(), weights.path()),
      type_of(options.precision));
  std::error_code failed;
  fs::create_directories(options.folder, failed);
  if (failed) {
    throw ConfigError(str("cannot make the folder '", options.folder, "': ", failed.message()));
  }
  const std::string file = (fs::path(options.folder) / "model.safetensors").string();
  const auto written = checkpoint::write_safetensors(file, tensors, {{"format", "pt"}});
  data::write_file((fs::path(options.folder) / "config.json").string(), config);
  if (!tokenizer.empty()) {
    const char* name =
        data::is_json_tokenizer(vocabulary) ? data::kJsonTokenizerFile : data::kTokenizerFile;
    data::write_file((fs::path(options.folder) / name).string(), vocabulary);
  }
  std::printf(
      "%s: %s, %lld parameters as %s, %llu bytes%s\n",
      options.folder.c_str(),
      preset.family.c_str(),
      static_cast<long long>(preset.parameters),
      options.precision.c_str(),
      static_cast<unsigned long long>(written.file.size_bytes),
      tokenizer.empty() ? "; no tokenizer: name one with --tokenizer" : "");
}

} // namespace
} // namespace export_command

void set_up_export(CLI::App& app) {
  using export_command::Options;
  auto options = std::make_shared<Options>();
  app.add_option("weights", options->weights, "a checkpoint, or a folder of checkpoints")
      ->required();
  app.add_option("folder", options->folder, "the folder to make")->required();
  app.add_option(
      "--tokenizer",
      options->tokenizer,
      "a tokenizer.model or tokenizer.json to put in; the one beside the weights "
      "when not given");
  app.add_option("--precision", options->precision, "how numbers are written")
      ->check(CLI::IsMember({"f32", "bf16", "fp16"}))
      ->capture_default_str();
  app.callback([options] { export_command::run(*options); });
}

namespace {

const RegisterCommand registered({
    "export",
    "write a checkpoint as a folder that transformers loads",
    set_up_export,
});

} // namespace

} // namespace tessera::cli
