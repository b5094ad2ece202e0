#include "tests/equivalence/dropout.h"

#include <array>
#include <cmath>
#include <optional>
#include <vector>

namespace tessera::equivalence {

namespace {

struct Current {
  MaskPlace place;
  std::uint32_t uses = 0;
};
thread_local std::optional<Current> t_current;

using Words = std::array<std::uint32_t, 4>;

// Philox 4x32-10 as section 4.3 of Salmon et al. 2011 writes it: in each round two products, whose
// halves change places, under a key that grows by two constants.
Words random_words(Words counter, std::uint64_t seed) {
  std::array<std::uint32_t, 2> key{
      static_cast<std::uint32_t>(seed & 0xFFFFFFFF), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = 0xD2511F53ULL * counter[0];
    const std::uint64_t right = 0xCD9E8D57ULL * counter[2];
    counter = Words{
        static_cast<std::uint32_t>(right >> 32) ^ counter[1] ^ key[0],
        static_cast<std::uint32_t>(right),
        static_cast<std::uint32_t>(left >> 32) ^ counter[3] ^ key[1],
        static_cast<std::uint32_t>(left)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Element e of the whole batch's tensor has word e % 4 of the counter (e / 4, use, step).
torch::Tensor mask_of(Current& current, const torch::Tensor& x, double probability) {
  const std::uint32_t use = current.uses++;
  const double least = std::ldexp(probability, 32);
  const auto first =
      static_cast<std::uint64_t>(current.place.before * (x.numel() / current.place.samples));
  std::vector<float> kept(static_cast<std::size_t>(x.numel()));
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const std::uint64_t element = first + i;
    const std::uint64_t block = element / 4;
    const Words words = random_words(
        {static_cast<std::uint32_t>(block & 0xFFFFFFFF),
         static_cast<std::uint32_t>(block >> 32),
         use,
         current.place.step},
        current.place.seed);
    const bool stays = static_cast<double>(words[element % 4]) >= std::round(least);
    kept[i] = stays ? static_cast<float>(1 / (1 - probability)) : 0.0F;
  }
  return torch::tensor(kept).view(x.sizes()).to(x.scalar_type());
}

} // namespace

MasksOfOneProcess::MasksOfOneProcess(const MaskPlace& place) {
  t_current = Current{place};
}

MasksOfOneProcess::~MasksOfOneProcess() {
  t_current.reset();
}

torch::Tensor drop(const torch::Tensor& x, double probability, bool training) {
  if (!training || !t_current) {
    return torch::dropout(x, probability, training);
  }
  return x * mask_of(*t_current, x, probability);
}

} // namespace tessera::equivalence
