#include "models/data/mixture.h"

#include <cmath>
#include <filesystem>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"

#include "models/data/data_folder.h"

namespace tessera::data {

struct MixtureState {
  std::uint64_t drawn = 0;
  std::vector<SamplerState> parts;
};

/// What a checkpoint keeps of a part.
struct KeptMixturePart {
  std::string directory;
  double weight = 1;
  OrderedJson hashes;
};

namespace {

constexpr form::Bounds kNotNegative = form::at_least(0);

template <typename Part> // MixturePart or KeptMixturePart
double sum_of_weights(const std::vector<Part>& parts) {
  double sum = 0;
  for (const Part& part : parts) {
    sum += part.weight;
  }
  return sum;
}

// Weights of 1 and 1 draw what 2 and 2 draw.
bool have_same_shares(
    const std::vector<KeptMixturePart>& kept,
    const std::vector<MixturePart>& parts) {
  constexpr double kRounding = 1e-12;
  const double kept_sum = sum_of_weights(kept);
  const double sum = sum_of_weights(parts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double share = parts[i].weight / sum;
    if (std::abs(kept[i].weight / kept_sum - share) > kRounding * share) {
      return false;
    }
  }
  return true;
}

} // namespace

template <typename Visit>
void describe(Visit& visit, MixtureState& state) {
  visit.allow_unknown();
  OrderedJson parts = OrderedJson::array();
  if constexpr (!Visit::kReads) {
    for (const SamplerState& part : state.parts) {
      parts.push_back(OrderedJson::parse(to_json(part)));
    }
  }
  visit({.name = "drawn", .bounds = kNotNegative}, state.drawn);
  visit({.name = "parts"}, parts);
  if constexpr (Visit::kReads) {
    for (const OrderedJson& part : parts) {
      state.parts.push_back(sampler_state_from_json(part.dump()));
    }
  }
}

template <typename Visit>
void describe(Visit& visit, KeptMixturePart& part) {
  visit({.name = "directory"}, part.directory);
  visit({.name = "weight"}, part.weight);
  visit({.name = "hashes"}, part.hashes);
}

std::string to_text(const std::vector<MixturePart>& parts) {
  if (parts.size() == 1) {
    return parts.front().directory;
  }
  const double sum = sum_of_weights(parts);
  std::string text;
  for (const MixturePart& part : parts) {
    text += str(text.empty() ? "" : " + ", part.directory, " x ", part.weight / sum);
  }
  return text;
}

std::vector<TokenDataset>
open_parts(const std::vector<MixturePart>& parts, const char* file, bool verify) {
  std::vector<TokenDataset> datasets;
  for (const MixturePart& part : parts) {
    if (std::error_code ignored; !std::filesystem::is_directory(part.directory, ignored)) {
      throw ConfigError(str(
          "'",
          part.directory,
          "', a data folder of the job (data.directory, data.mixture), does not exist; `tessera "
          "data prepare --output ",
          part.directory,
          "` makes it"));
    }
    datasets.emplace_back(part.directory + "/" + file, verify);
    const TokenDataset& first = datasets.front();
    const TokenDataset& last = datasets.back();
    if (last.vocab_size() != first.vocab_size()) {
      throw ConfigError(
          str(last.path(),
              " has a vocabulary of ",
              last.vocab_size(),
              " tokens, ",
              first.path(),
              " of ",
              first.vocab_size(),
              "; prepare the folders of a mixture with one tokenizer (--tokenizer)"));
    }
  }
  return datasets;
}

std::vector<DataHashes> hashes_of_parts(
    const std::vector<MixturePart>& parts,
    const std::vector<TokenDataset>& train,
    const std::vector<TokenDataset>& validation) {
  std::vector<DataHashes> hashes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    hashes.push_back(hashes_of(train.at(i), validation.at(i), parts[i].directory));
    check_files_of_manifest(parts[i].directory, hashes.back());
    if (hashes.back().tokenizer != hashes.front().tokenizer) {
      throw ConfigError(
          str(parts[i].directory,
              " has another tokenizer (",
              hashes.back().tokenizer,
              ") than ",
              parts[0].directory,
              " (",
              hashes.front().tokenizer,
              "); prepare the folders of a mixture with one tokenizer (--tokenizer)"));
    }
  }
  return hashes;
}

std::string hashes_to_json(
    const std::vector<MixturePart>& parts,
    const std::vector<DataHashes>& hashes) {
  if (parts.size() == 1) {
    return to_json(hashes.at(0));
  }
  OrderedJson list = OrderedJson::array();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    list.push_back(form::write(KeptMixturePart{
        parts[i].directory, parts[i].weight, OrderedJson::parse(to_json(hashes.at(i)))}));
  }
  return list.dump();
}

std::string mixture_differences(
    const std::string& before,
    const std::vector<MixturePart>& parts,
    const std::vector<DataHashes>& hashes) {
  constexpr const char* kOrigin = "the checkpoint's data";
  const auto json = OrderedJson::parse(before);
  std::vector<KeptMixturePart> kept;
  form::Faults faults(kOrigin);
  if (json.is_array()) {
    for (const OrderedJson& item : json) {
      form::read(item, kept.emplace_back(), faults);
    }
  } else {
    kept.push_back({parts.front().directory, 1, json});
  }
  if (kept.size() != parts.size()) {
    return str(
        "  the checkpoint has ",
        kept.size(),
        kept.size() == 1 ? " folder" : " folders",
        ", the job ",
        parts.size());
  }
  const bool same_shares = have_same_shares(kept, parts);
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto was = data_hashes_from_json(kept[i].hashes.dump(), kOrigin);
    const std::string what = differences(was, "the checkpoint", hashes.at(i), parts[i].directory);
    if (!what.empty()) {
      text += (text.empty() ? "" : "\n") + what;
    }
    if (!same_shares && kept[i].weight != parts[i].weight) {
      text +=
          str(text.empty() ? "" : "\n",
              "  weight of ",
              parts[i].directory,
              ": the checkpoint has ",
              kept[i].weight,
              ", the job ",
              parts[i].weight);
    }
  }
  return text;
}

MixtureSampler::MixtureSampler(const MixtureOptions& given) : options_(given) {
  options_.all = given.all == 0 ? given.batch : given.all;
  const MixtureOptions& options = options_;
  if (options.weights.empty() || options.weights.size() != options.samples.size()) {
    throw ConfigError(str(
        "mixture: ", options.weights.size(), " weights for ", options.samples.size(), " parts"));
  }
  if (options.batch == 0 || options.before + options.batch > options.all) {
    throw ConfigError(
        str("mixture: a batch of ",
            options.batch,
            " samples behind ",
            options.before,
            " of other ranks, of ",
            options.all,
            " in all"));
  }
  double sum = 0;
  for (std::size_t i = 0; i < options.weights.size(); ++i) {
    if (!(options.weights[i] > 0) || !std::isfinite(options.weights[i])) {
      throw ConfigError(str("mixture: weight ", options.weights[i], ", expected one above 0"));
    }
    sum += options.weights[i];
    up_to_.push_back(sum);
    // The parts' permutations are not alike; the first one's is that of a training on it alone.
    parts_.emplace_back(SamplerOptions{
        .samples = options.samples[i],
        .batch = 1,
        .seed = i == 0 ? options.seed : mix_bits(options.seed + i * kMixStep),
        .shuffle = options.shuffle});
  }
}

std::size_t MixtureSampler::part_of(std::uint64_t number) const {
  // 53 bits are a double without rounding, in [0, 1).
  const std::uint64_t bits = mix_bits(mix_bits(options_.seed ^ kMixStep) + number * kMixStep);
  const double drawn = std::ldexp(static_cast<double>(bits >> 11U), -53) * up_to_.back();
  std::size_t part = 0;
  while (part + 1 < up_to_.size() && drawn >= up_to_[part]) {
    ++part;
  }
  return part;
}

std::vector<Draw> MixtureSampler::next() {
  std::vector<Draw> own;
  own.reserve(options_.batch);
  // Every rank draws for all: which sample of its part is next depends on the draws of the others.
  for (std::uint64_t i = 0; i < options_.all; ++i) {
    const std::size_t part = part_of(drawn_++);
    const std::uint64_t sample = parts_[part].next().front();
    if (i >= options_.before && i < options_.before + options_.batch) {
      own.push_back({part, sample});
    }
  }
  return own;
}

std::uint64_t MixtureSampler::next_place() const {
  // The state of a single part does not tell how many were drawn.
  const std::uint64_t drawn = parts_.size() == 1 ? parts_.front().next_place() : drawn_;
  return drawn + options_.before;
}

std::string MixtureSampler::state() const {
  if (parts_.size() == 1) {
    return to_json(parts_.front().state());
  }
  MixtureState state{drawn_, {}};
  for (const Sampler& part : parts_) {
    state.parts.push_back(part.state());
  }
  return form::write(state).dump();
}

void MixtureSampler::set_state(const std::string& json) {
  const auto found = OrderedJson::parse(json);
  MixtureState state;
  if (found.is_object() && found.contains("parts")) {
    state = form::read_text<MixtureState, CheckpointError>(json, "sampler state");
  } else {
    state.parts.push_back(sampler_state_from_json(json));
  }
  if (state.parts.size() != parts_.size()) {
    throw CheckpointError(
        str("sampler state: ",
            state.parts.size(),
            " folders of data, this job has ",
            parts_.size(),
            "; go on with the data that it was saved with"));
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].set_state(state.parts[i]);
  }
  drawn_ = state.drawn;
}

} // namespace tessera::data
