#include "tessera/runtime/random_state.h"

#include <mutex>

#include "tessera/runtime/message.h"

namespace tessera::runtime {

namespace {

at::CPUGeneratorImpl& generator() {
  static const at::Generator instance = at::detail::getDefaultCPUGenerator();
  return *at::check_generator<at::CPUGeneratorImpl>(instance);
}

} // namespace

std::uint64_t stream_seed(std::uint64_t seed, std::int64_t step, std::uint64_t task) {
  return mix(mix(seed, static_cast<std::uint64_t>(step)), task);
}

std::uint64_t step_function_id(int microbatch) {
  return mix(0x726f6f74, static_cast<std::uint64_t>(microbatch)); // "root"
}

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

} // namespace tessera::runtime
