#include "cli/train/job_preset.h"

#include "tessera/base/json/parse.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/optim/adamw_8bit_state.h"
#include "tessera/planner/runtime_abilities.h"
#include "tessera/train/checkpoints.h"

#include "models/data/data_folder.h"
#include "models/data/token_file.h"
#include "models/objectives/documents.h"
#include "models/objectives/make_objective.h"

namespace tessera::cli {

namespace {

bool from_weights(const Job& job) {
  return !job.model.init_from.empty() && !job.model.named;
}

/// The model of a job without a name. A run that goes on needs the weights no longer with which it
/// began, so where they are gone its own checkpoint tells.
models::Preset preset_of_weights(const Job& job) {
  try {
    return preset_beside(Weights(job.model.init_from));
  } catch (const Error& error) { // gone, torn or damaged
    const std::string& own = job.checkpoint.directory;
    if (own.empty() || !checkpoint_exists(own)) {
      throw ConfigError(error.what());
    }
    return preset_in(checkpoint::open_newest(own, checkpoint::Verify::kSizes).checkpoint->path());
  }
}

models::Preset named_preset(const Job& job) {
  const models::Preset named =
      from_weights(job) ? preset_of_weights(job) : models::find_preset(job.model.name);
  const bool says_sequence = [&] {
    const OrderedJson said = OrderedJson::parse(job.said);
    return said.contains("data") && said["data"].contains("sequence");
  }();
  if (!models::language_model_sizes(named.options) && !says_sequence) {
    throw ConfigError(
        str("'data.sequence' is missing: a sample of a model of the family ",
            named.family,
            " is one interaction that was seen, and others that are drawn beside it; write how "
            "many pairs that makes together, such as 5"));
  }
  if (job.data.reset_attention_mask) {
    models::check_takes_documents(named.options, named.family, kResetAttentionMaskKey);
  }
  if (!job.sample.prompt.empty() && !models::continues_a_text(named.options)) {
    throw ConfigError(
        str("'sample.prompt' is said, and a model of the family ",
            named.family,
            " continues no text; leave 'sample' out"));
  }
  return named;
}

/// What the job's file leaves open. Sizes of weights are not written over.
models::Preset
with_options_of_data(const Job& job, models::Preset preset, const models::ObjectiveFacts& facts) {
  auto options = OrderedJson::parse(job.model.options);
  if (from_weights(job)) {
    return models::with_overrides(std::move(preset), options.dump());
  }
  if (!options.contains("vocab_size") && facts.vocabulary > 0) {
    options["vocab_size"] = facts.vocabulary;
  }
  for (const auto& [key, value] : facts.options) {
    if (options.contains(key)) {
      continue;
    }
    if (!value) {
      throw ConfigError(
          str("'model.options.",
              key,
              "' is missing, and the tokenizer of 'data.directory' does not tell it; write an id "
              "that no text has, the smaller the better"));
    }
    options[key] = *value;
  }
  preset = models::with_overrides(std::move(preset), options.dump());
  const auto sizes = models::language_model_sizes(preset.options);
  const std::string positions = sizes ? sizes->positions_key : "";
  if (positions.empty() || options.contains(positions)) {
    return preset;
  }
  const OrderedJson longest = {{positions, job.data.sequence + sizes->reserved_positions}};
  return models::with_overrides(std::move(preset), longest.dump());
}

/// An option that says how many rows a table has.
void check_at_least(const char* key, std::int64_t rows, const models::ObjectiveFacts& facts) {
  const auto needed = facts.options.find(key);
  if (needed != facts.options.end() && rows < needed->second) {
    throw ConfigError(
        str("model.options.",
            key,
            " is ",
            rows,
            ", the data have ",
            *needed->second,
            "; leave it out to follow the data"));
  }
}

void check_sizes(
    const Job& job,
    const models::Preset& preset,
    const models::ObjectiveFacts& facts,
    std::int64_t tokens) {
  if (const auto* ncf = std::get_if<models::NcfOptions>(&preset.options)) {
    check_at_least("users", ncf->users, facts);
    check_at_least("items", ncf->items, facts);
    return;
  }
  const auto sizes = models::language_model_sizes(preset.options).value();
  if (sizes.vocabulary < facts.vocabulary) {
    throw ConfigError(str(
        "model.options.vocab_size is ",
        sizes.vocabulary,
        ", the data has ",
        tokens,
        facts.vocabulary == tokens
            ? str(" tokens")
            : str(" tokens, and ", facts.vocabulary - tokens, " more ids are reserved"),
        from_weights(job) ? ": they do not belong together" : "; leave it out to follow the data"));
  }
  if (sizes.positions_key[0] != '\0' && sizes.positions < job.data.sequence) {
    throw ConfigError(
        str("model.options.",
            sizes.positions_key,
            " is ",
            sizes.positions + sizes.reserved_positions,
            sizes.reserved_positions == 0
                ? str("")
                : str(", of which ", sizes.reserved_positions, " are no places of tokens"),
            ", shorter than data.sequence = ",
            job.data.sequence));
  }
}

/// The layers say the same when the first step divides them (nn/managed); a job is told before.
void check_managed(const Job& job, const models::Preset& preset) {
  if (job.parallel.mesh_memory != config::MeshMemory::kManaged) {
    return;
  }
  const auto* gpt = std::get_if<models::GptOptions>(&preset.options);
  if (gpt == nullptr) {
    throw ConfigError(
        str("'parallel.mesh_memory' is \"managed\", which is for the family gpt; ",
            preset.name,
            " is of the family ",
            preset.family,
            ": leave mesh_memory out"));
  }
  if (gpt->dropout > 0) {
    throw ConfigError(
        str("'parallel.mesh_memory' is \"managed\", which has no form for dropout, and "
            "model.options.dropout is ",
            gpt->dropout,
            "; write \"dropout\": 0.0 in model.options, or leave mesh_memory out"));
  }
  if (gpt->activation_function == "relu") {
    throw ConfigError(
        "'parallel.mesh_memory' is \"managed\", which has no form for "
        "model.options.activation_function \"relu\"; write \"gelu_new\", or leave mesh_memory "
        "out");
  }
}

} // namespace

JobModel job_model(const Job& job) {
  const std::string folder = folders_of(job).front().directory; // all have the same tokenizer
  const data::TokenDataset tokens(folder + "/" + data::kTrainFile, false);
  return job_model(job, models::read_token_table(folder, tokens.vocab_size()));
}

JobModel job_model(const Job& job, const models::TokenTable& table) {
  const models::Preset named = named_preset(job);
  if (table.tokens == 0) {
    const models::Preset preset = with_options_of_data(job, named, {});
    check_sizes(job, preset, {}, 0);
    check_managed(job, preset);
    return {preset, nullptr};
  }
  const auto facts = models::make_objective(named.options, table, job.data.sequence)->facts();
  models::Preset preset = with_options_of_data(job, named, facts);
  check_sizes(job, preset, facts, table.tokens);
  check_managed(job, preset);
  preset.sample.decoder_sequence = facts.decoder_positions;
  // Made of the final options, of which it may use some.
  return {preset, models::make_objective(preset.options, table, job.data.sequence)};
}

models::Preset preset_of(const Job& job) {
  return job_model(job).preset;
}

std::string check_tokenizer(const Job& job, const Weights& weights) {
  const std::string folder = folders_of(job).front().directory; // all have the same tokenizer
  const std::string other = tokenizer_difference(weights, data::tokenizer_path(folder), folder);
  if (other.empty() || job.model.other_tokenizer) {
    return other;
  }
  throw ConfigError(
      str("'model.init_from': ",
          other,
          "; prepare the data with their tokenizer (tessera data prepare --tokenizer FILE), or "
          "write \"other_tokenizer\": true in \"model\" to begin with them all the same"));
}

double state_bytes_per_parameter(const Job& job) {
  constexpr double kNumber = sizeof(float);
  constexpr double kLarge = 1 << 20; // elements; smaller tensors are no large part of a model
  const double moments = job.optimizer.type == "adamw_8bit"
                             ? optim::adamw_8bit_bytes(kLarge) / kLarge
                         : job.optimizer.type == "novograd" ? kNumber
                         : job.optimizer.type == "lamb"     ? 3 * kNumber // with its updates
                         : job.optimizer.type != "sgd"      ? 2 * kNumber
                         : job.optimizer.momentum > 0       ? kNumber
                                                            : 0;
  return moments + (has_masters(job) ? kNumber : 0);
}

void follow_job(const Job& job, const cost::Cluster& cluster, planner::SearchOptions& search) {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  search.fast_mode = search.fast_mode || job.parallel.fast_mode;
  search.keep_products = job.activation_checkpointing == "selective";
  // A job that says it does it wherever the plan goes; managed memory recomputes by itself.
  search.can_recompute = (search.can_recompute || job.activation_checkpointing != "none") &&
                         job.parallel.mesh_memory != config::MeshMemory::kManaged;
  // Without the bandwidth of devices and hosts it has no price.
  search.offload_activations =
      job.parallel.offload_activations && planner::hosts_are_known(cluster);
  if (search.memory_limit_bytes == 0) {
    search.memory_limit_bytes = job.memory_limit_gib * kGib;
  }
}

PresetRun run_of(const Job& job) {
  PresetRun run;
  run.precision = precision_of(job.precision);
  run.sequence = job.data.sequence;
  run.global_batch_size = static_cast<int>(job.data.batch);
  return run;
}

} // namespace tessera::cli
