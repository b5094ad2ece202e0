#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/BFloat16.h>

#include "tessera/state/element_places.h"

namespace tessera::optim {

/// f32 to bf16, up or down with the probability that makes the mean the number itself. The random
/// bits of an element are a function of seed, update, name of its whole tensor and number in it
/// (Philox4x32-10), so all ranks that hold the element, in whatever layout, round it alike.
/// Threads: any.
/// Source: Gupta et al. 2015, section 3; Salmon et al. 2011 (Philox).
class StochasticRounding {
 public:
  /// Of one local tensor. Elements without a place are rounded to the nearest.
  /// Throws: ConfigError for a tensor of 2^35 elements or more.
  StochasticRounding(std::uint64_t seed, state::ElementPlaces places);

  /// Rounds the elements [first, first + count) of the local tensor in its update number `update`.
  void round(
      std::uint32_t update,
      std::int64_t first,
      const float* numbers,
      std::int64_t count,
      c10::BFloat16* into) const;

 private:
  std::uint64_t seed_;
  state::ElementPlaces places_;
  std::vector<std::uint64_t> streams_; // a hash of each name
};

/// Adds 16 random bits below the last bit of a bf16 and cuts. What is not finite stays so.
c10::BFloat16 round_with(float number, std::uint16_t bits);

} // namespace tessera::optim
