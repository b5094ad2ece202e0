#pragma once

#include <cstdint>
#include <string>

namespace tessera::data {

/// Who interacted with what: users and items of a recommender, as numbers from 0.
struct InteractionSizes {
  std::int64_t users = 0;
  std::int64_t items = 0;
};

/// Reads what `interactions_to_json` wrote. Messages call the text `origin`.
/// Throws: ConfigError for another form, no user, or fewer than two items.
InteractionSizes interactions_from_json(const std::string& text, const std::string& origin);
std::string to_json(const InteractionSizes& sizes);

struct InteractionOptions {
  std::string output; // folder, made when missing
  InteractionSizes sizes{1000, 500};
  std::uint64_t count = 100000; // interactions, of which one in twenty is for validation
  std::uint64_t seed = 1;
  bool force = false; // also over a folder with other data
};

struct InteractionResult {
  bool skipped = false; // everything was there already
  std::uint64_t train = 0;
  std::uint64_t validation = 0;
};

/// Writes a folder of generated interactions, with which a recommender can be trained and compared
/// where no real ones are at hand. Users and items belong to eight groups; four of five
/// interactions are within a group, where some items are more popular than others, and the fifth is
/// with any item. They are independent draws, so a pair may come twice.
///
/// The token files hold user and item alternately; interactions.json, which takes the place of a
/// tokenizer, says how many there are of each. The same options give the same bytes on any machine.
/// Not collective. Threads: one at a time.
/// Throws: ConfigError for no user, fewer than two items or 20 interactions, a full disk, and a
/// folder with other data unless `force` is set.
InteractionResult prepare_interactions(const InteractionOptions& options);

} // namespace tessera::data
