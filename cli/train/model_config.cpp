#include "cli/train/model_config.h"

#include <filesystem>
#include <optional>

#include "models/data/data_folder.h"
#include "models/data/files.h"
#include "models/data/tokenizer.h"
#include "models/published_config.h"

namespace tessera::cli {

void write_model_config(
    const std::string& folder,
    const models::Preset& preset,
    const std::string& data) {
  const std::string tokenizer = data::tokenizer_path(data);
  std::optional<std::int32_t> end_of_document;
  if (models::language_model_sizes(preset.options) && std::filesystem::exists(tokenizer)) {
    const std::int32_t end = data::Tokenizer(tokenizer).end_of_document();
    end_of_document = end < 0 ? std::nullopt : std::optional(end);
  }
  data::write_file(folder + "/config.json", models::to_published(preset.options, end_of_document));
}

} // namespace tessera::cli
