#include "cli/train/model_config.h"

#include <filesystem>
#include <optional>

#include "models/data/files.h"
#include "models/data/prepare.h"
#include "models/data/tokenizer.h"
#include "models/published_config.h"

namespace tessera::cli {

void write_model_config(
    const std::string& folder,
    const models::Preset& preset,
    const std::string& data) {
  const std::string tokenizer = data + "/" + data::kTokenizerFile;
  std::optional<std::int32_t> end_of_document;
  if (std::filesystem::exists(tokenizer)) {
    end_of_document = data::Tokenizer(tokenizer).end_of_document();
  }
  const auto* gpt = std::get_if<models::GptOptions>(&preset.options);
  data::write_file(
      folder + "/config.json",
      gpt != nullptr ? models::to_published(*gpt, end_of_document)
                     : models::to_published(
                           std::get<models::DecoderOptions>(preset.options), end_of_document));
}

} // namespace tessera::cli
