#include "cli/train/job_preset.h"

#include "tessera/base/json/parse.h"

#include "cli/weights/weights.h"
#include "models/data/prepare.h"
#include "models/data/token_file.h"

namespace tessera::cli {

models::Preset preset_of(const Job& job) {
  const data::TokenDataset tokens(job.data.directory + "/" + data::kTrainFile, false);
  return preset_of(job, tokens.vocab_size());
}

models::Preset preset_of(const Job& job, std::int64_t vocabulary) {
  const bool from_weights = !job.model.init_from.empty() && !job.model.named;
  const models::Preset named = from_weights ? preset_beside(Weights(job.model.init_from))
                                            : models::find_preset(job.model.name);
  const auto named_sizes = models::language_model_sizes(named.options);
  if (!named_sizes) {
    throw ConfigError(
        str("'model.name' is ",
            job.model.name,
            ", of the family ",
            named.family,
            "; this program trains the families gpt, llama, gptj, gpt_neo and gpt_neox"));
  }
  const std::string positions = named_sizes->positions_key;
  auto options = OrderedJson::parse(job.model.options);
  if (!from_weights && !options.contains("vocab_size") && vocabulary > 0) {
    options["vocab_size"] = vocabulary;
  }
  if (!from_weights && !options.contains(positions)) {
    options[positions] = job.data.sequence;
  }
  const models::Preset preset = models::with_overrides(named, options.dump());
  const auto sizes = models::language_model_sizes(preset.options).value();
  if (sizes.vocabulary < vocabulary) {
    throw ConfigError(
        str("model.options.vocab_size is ",
            sizes.vocabulary,
            ", the data has ",
            vocabulary,
            from_weights ? " tokens: they do not belong together"
                         : " tokens; leave it out to follow the data"));
  }
  if (sizes.positions < job.data.sequence) {
    throw ConfigError(
        str("model.options.",
            positions,
            " is ",
            sizes.positions,
            ", shorter than data.sequence = ",
            job.data.sequence));
  }
  return preset;
}

PresetRun run_of(const Job& job) {
  PresetRun run;
  run.precision = precision_of(job.precision);
  run.sequence = job.data.sequence;
  run.global_batch_size = static_cast<int>(job.data.batch);
  return run;
}

} // namespace tessera::cli
