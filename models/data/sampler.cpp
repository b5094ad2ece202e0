#include "models/data/sampler.h"

#include <bit>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"

namespace tessera::data {

namespace {

std::uint64_t next_bits(std::uint64_t state) {
  return mix_bits(state + kMixStep);
}

} // namespace

template <typename Visit>
void describe(Visit& visit, SamplerState& state) {
  visit.allow_unknown();
  visit({.name = "epoch", .bounds = form::at_least(0)}, state.epoch);
  visit({.name = "index", .bounds = form::at_least(0)}, state.index);
}

std::string to_json(const SamplerState& state) {
  return form::write(state).dump();
}

SamplerState sampler_state_from_json(const std::string& text) {
  return form::read_text<SamplerState, CheckpointError>(text, "sampler state");
}

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  if (options.samples == 0 || options.batch == 0) {
    throw ConfigError(
        str("sampler: ",
            options.samples,
            " samples and a batch of ",
            options.batch,
            ", expected 1 or more of both"));
  }
  if (options.dp_size < 1 || options.dp_rank < 0 || options.dp_rank >= options.dp_size) {
    throw ConfigError(
        str("sampler: data-parallel rank ", options.dp_rank, " of ", options.dp_size));
  }
  const int bits = std::bit_width(options.samples - 1);
  half_bits_ = (bits + 1) / 2;
}

// A Feistel network permutes the numbers below 4^half_bits; results beyond the
// samples are sent through again until they fall inside (at most four times as
// many numbers as samples: four rounds on average, one at best).
std::uint64_t Sampler::sample_at(std::uint64_t epoch, std::uint64_t index) const {
  if (!options_.shuffle || options_.samples == 1) {
    return index;
  }
  const std::uint64_t key = next_bits(next_bits(options_.seed) ^ epoch);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t value = index;
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t next = left ^ (next_bits(key ^ (round << 56) ^ right) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= options_.samples);
  return value;
}

std::vector<std::uint64_t> Sampler::next() {
  const auto size = static_cast<std::uint64_t>(options_.dp_size);
  const auto rank = static_cast<std::uint64_t>(options_.dp_rank);
  std::vector<std::uint64_t> samples;
  samples.reserve(options_.batch);
  for (std::uint64_t k = 0; k < options_.batch; ++k) {
    const std::uint64_t index = state_.index + rank * options_.batch + k;
    samples.push_back(sample_at(state_.epoch + index / options_.samples, index % options_.samples));
  }
  state_.index += options_.batch * size;
  state_.epoch += state_.index / options_.samples;
  state_.index %= options_.samples;
  return samples;
}

std::uint64_t Sampler::next_place() const {
  return state_.epoch * options_.samples + state_.index +
         static_cast<std::uint64_t>(options_.dp_rank) * options_.batch;
}

void Sampler::set_state(const SamplerState& state) {
  if (state.index >= options_.samples) {
    throw CheckpointError(
        str("sampler state: index ",
            state.index,
            " of an epoch of ",
            options_.samples,
            " samples; was it saved with other data or another sequence "
            "length?"));
  }
  state_ = state;
}

std::uint64_t count_samples(std::uint64_t tokens, const Window& window, const std::string& what) {
  TESSERA_CHECK(window.stride > 0 && window.length >= window.stride);
  const auto length = static_cast<std::uint64_t>(window.length);
  if (tokens < length) {
    throw ConfigError(
        str(what,
            " has ",
            tokens,
            " tokens, one sample needs ",
            length,
            ": give more text or a shorter sequence"));
  }
  return (tokens - length) / static_cast<std::uint64_t>(window.stride) + 1;
}

} // namespace tessera::data
