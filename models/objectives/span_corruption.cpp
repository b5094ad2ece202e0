#include "models/objectives/span_corruption.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::models {

namespace {

constexpr double kNoiseShare = 0.15;
constexpr double kMeanSpan = 3;

/// Halves go to the even neighbour, as in the authors' program.
std::int64_t rounded(double value) {
  return static_cast<std::int64_t>(std::nearbyint(value));
}

SpanLengths lengths_of(std::int64_t tokens) {
  SpanLengths lengths;
  lengths.tokens = tokens;
  lengths.noise =
      std::clamp<std::int64_t>(rounded(kNoiseShare * static_cast<double>(tokens)), 1, tokens - 1);
  const std::int64_t stays = tokens - lengths.noise;
  lengths.spans = std::clamp<std::int64_t>(
      rounded(static_cast<double>(lengths.noise) / kMeanSpan), 1, std::min(lengths.noise, stays));
  lengths.inputs = stays + lengths.spans + 1;
  lengths.targets = lengths.noise + lengths.spans + 1;
  return lengths;
}

/// Divides `items` into `parts` of one or more.
std::vector<std::int64_t> divided(std::int64_t items, std::int64_t parts, Draws& draws) {
  std::vector<std::int64_t> cuts(static_cast<std::size_t>(items - 1));
  std::iota(cuts.begin(), cuts.end(), 1);
  draws.shuffle_front(cuts, parts - 1);
  cuts.resize(static_cast<std::size_t>(parts - 1));
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(items);
  std::adjacent_difference(cuts.begin(), cuts.end(), cuts.begin());
  return cuts;
}

} // namespace

SpanLengths span_lengths(std::int64_t sequence) {
  constexpr std::int64_t kShortest = 4; // of 3 tokens: two that stay hold a sentinel and the end
  if (sequence < kShortest) {
    throw ConfigError(str(
        "span corruption: a sequence of ", sequence, " positions; write ", kShortest, " or more"));
  }
  // One token more makes the inputs as long as before or one longer.
  SpanLengths lengths = lengths_of(2);
  for (SpanLengths longer = lengths; longer.inputs <= sequence;
       longer = lengths_of(longer.tokens + 1)) {
    lengths = longer;
  }
  return lengths;
}

void corrupt_sample(
    const SpanLengths& lengths,
    const SpanTokens& marks,
    const std::int64_t* tokens,
    Draws draws,
    std::int64_t* inputs,
    std::int64_t* targets) {
  const std::vector<std::int64_t> noise = divided(lengths.noise, lengths.spans, draws);
  const std::vector<std::int64_t> stays =
      divided(lengths.tokens - lengths.noise, lengths.spans, draws);
  for (std::int64_t i = 0; i < lengths.spans; ++i) {
    const std::int64_t kept = stays[static_cast<std::size_t>(i)];
    const std::int64_t cut = noise[static_cast<std::size_t>(i)];
    const std::int64_t sentinel = marks.first_sentinel - i;
    inputs = std::copy_n(tokens, kept, inputs);
    tokens += kept;
    *inputs++ = sentinel;
    *targets++ = sentinel;
    targets = std::copy_n(tokens, cut, targets);
    tokens += cut;
  }
  *inputs = marks.end;
  *targets = marks.end;
}

} // namespace tessera::models
