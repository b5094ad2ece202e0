#include "tessera/tensor/random_state.h"

#include <array>
#include <cstring>
#include <mutex>
#include <type_traits>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera {

namespace {

at::CPUGeneratorImpl& generator() {
  static const at::Generator instance = at::detail::getDefaultCPUGenerator();
  return *at::check_generator<at::CPUGeneratorImpl>(instance);
}

// The form that travels. It has no padding, whose bytes would be undefined.
struct Flat {
  std::uint64_t seed;
  std::int64_t left;
  std::uint64_t next;
  std::uint64_t has_float;
  std::uint64_t has_double;
  double normal_double;
  float normal_float;
  std::uint32_t seeded;
  std::array<std::uint32_t, at::MERSENNE_STATE_N> numbers;
};
static_assert(std::has_unique_object_representations_v<decltype(Flat::numbers)>);
static_assert(sizeof(Flat) == 56 + 4 * at::MERSENNE_STATE_N);

} // namespace

RandomState RandomState::capture() {
  at::CPUGeneratorImpl& from = generator();
  // Threads of the user's own, such as data loaders, draw from it too.
  const std::lock_guard lock(from.mutex_);
  RandomState state(from.engine());
  state.normal_float_ = from.next_float_normal_sample();
  state.normal_double_ = from.next_double_normal_sample();
  return state;
}

RandomState RandomState::seeded(std::uint64_t seed) {
  return RandomState(at::mt19937(seed));
}

void RandomState::restore() const {
  at::CPUGeneratorImpl& to = generator();
  const std::lock_guard lock(to.mutex_);
  to.set_engine(engine_);
  to.set_next_float_normal_sample(normal_float_);
  to.set_next_double_normal_sample(normal_double_);
}

at::Tensor RandomState::to_bytes() const {
  const at::mt19937_data_pod data = engine_.data();
  Flat flat{};
  flat.seed = data.seed_;
  flat.left = data.left_;
  flat.next = data.next_;
  flat.seeded = data.seeded_ ? 1 : 0;
  flat.numbers = data.state_;
  flat.has_float = normal_float_.has_value() ? 1 : 0;
  flat.has_double = normal_double_.has_value() ? 1 : 0;
  flat.normal_float = normal_float_.value_or(0);
  flat.normal_double = normal_double_.value_or(0);
  at::Tensor bytes = at::empty({sizeof(Flat)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &flat, sizeof(Flat));
  return bytes;
}

RandomState RandomState::from_bytes(const at::Tensor& bytes) {
  TESSERA_CHECK(
      bytes.scalar_type() == at::kByte && bytes.is_contiguous() && bytes.numel() == sizeof(Flat),
      "a random state has ",
      sizeof(Flat),
      " bytes, found ",
      bytes.numel());
  Flat flat{};
  std::memcpy(&flat, bytes.data_ptr(), sizeof(Flat));
  at::mt19937_data_pod data{};
  data.seed_ = flat.seed;
  data.left_ = static_cast<int>(flat.left);
  data.next_ = static_cast<std::uint32_t>(flat.next);
  data.seeded_ = flat.seeded != 0;
  data.state_ = flat.numbers;
  at::mt19937 engine;
  engine.set_data(data);
  RandomState state(engine);
  if (flat.has_float != 0) {
    state.normal_float_ = flat.normal_float;
  }
  if (flat.has_double != 0) {
    state.normal_double_ = flat.normal_double;
  }
  return state;
}

} // namespace tessera
