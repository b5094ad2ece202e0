#include "models/data/interactions.h"

#include <algorithm>
#include <filesystem>
#include <random>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"

#include "models/data/data_folder.h"
#include "models/data/split_writer.h"

namespace tessera::data {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGroups = 8;
constexpr int kWithin = 80; // of 100 interactions

/// The engine's numbers are given by the standard; libraries' distributions are not.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : engine_(seed) {}

  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(count));
  }

 private:
  std::mt19937_64 engine_;
};

/// An item of the group, of which the first ones are the most popular.
std::int64_t item_of_group(Numbers& numbers, std::int64_t group, std::int64_t items) {
  const std::int64_t members = (items - group + kGroups - 1) / kGroups;
  const std::int64_t place = std::min(numbers.below(members), numbers.below(members));
  return group + place * kGroups;
}

std::int64_t item_for(Numbers& numbers, std::int64_t user, std::int64_t items) {
  const std::int64_t group = user % kGroups;
  const bool within = numbers.below(100) < kWithin && group < items;
  return within ? item_of_group(numbers, group, items) : numbers.below(items);
}

void check(const InteractionOptions& options) {
  const auto& [users, items] = options.sizes;
  // One of twenty sections is held back, the eleventh.
  if (users < 1 || items < 2 || options.count < kValidationEvery) {
    throw ConfigError(
        str("interactions of ",
            users,
            " users with ",
            items,
            " items, ",
            options.count,
            " of them; write at least one user, two items and ",
            kValidationEvery,
            " interactions"));
  }
}

std::string input_hash(const InteractionOptions& options) {
  const std::string text =
      str("interactions ",
          kFolderFormat,
          " ",
          options.sizes.users,
          " ",
          options.sizes.items,
          " ",
          options.count,
          " ",
          options.seed);
  return hexadecimal(hash_text(text));
}

} // namespace

template <typename Visit>
void describe(Visit& visit, InteractionSizes& sizes) {
  visit({.name = "users", .bounds = form::at_least(1)}, sizes.users);
  visit({.name = "items", .bounds = form::at_least(2)}, sizes.items);
}

InteractionSizes interactions_from_json(const std::string& text, const std::string& origin) {
  InteractionSizes sizes;
  try {
    form::Faults faults(origin);
    form::read(parse_json(text, origin), sizes, faults);
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
  return sizes;
}

std::string to_json(const InteractionSizes& sizes) {
  return form::write(sizes).dump();
}

InteractionResult prepare_interactions(const InteractionOptions& options) {
  check(options);
  const std::string hash = input_hash(options);
  FolderFacts facts;
  constexpr std::uint64_t kIds = 2; // of an interaction
  if (!options.force && is_up_to_date(options.output, hash, facts)) {
    return {true, facts.train_tokens / kIds, facts.validation_tokens / kIds};
  }
  if (!options.force) {
    check_that_nothing_is_lost(options.output, hash);
  }
  std::error_code failed;
  fs::create_directories(options.output, failed);
  if (failed) {
    throw ConfigError(str("cannot make folder ", options.output, ": ", failed.message()));
  }
  const auto& [users, items] = options.sizes;
  SplitWriter writer(options.output, std::max(users, items), std::nullopt);
  Numbers numbers(options.seed);
  for (std::uint64_t i = 0; i < options.count; ++i) {
    const std::int64_t user = numbers.below(users);
    const std::int64_t item = item_for(numbers, user, items);
    writer.add_section(
        {static_cast<std::int32_t>(user), static_cast<std::int32_t>(item)}, i == 0, false);
  }
  publish(options.output, kInteractionsFile, to_json(options.sizes) + "\n", writer);
  write_manifest(
      options.output,
      {.format = kFolderFormat,
       .source = str(options.count, " generated interactions, seed ", options.seed),
       .input_hash = hash,
       .vocab_size = std::max(users, items),
       .train_tokens = writer.train_tokens(),
       .validation_tokens = writer.validation_tokens()});
  fs::remove(fs::path(options.output) / kUnfinishedFile);
  return {false, writer.train_tokens() / kIds, writer.validation_tokens() / kIds};
}

} // namespace tessera::data
