#include "tessera/runtime/random_state.h"

namespace tessera::runtime {

namespace {

at::CPUGeneratorImpl& generator() {
  static const at::Generator instance = at::detail::getDefaultCPUGenerator();
  return *at::check_generator<at::CPUGeneratorImpl>(instance);
}

} // namespace

RandomState RandomState::capture() {
  at::CPUGeneratorImpl& from = generator();
  RandomState state;
  state.engine_ = from.engine();
  state.normal_float_ = from.next_float_normal_sample();
  state.normal_double_ = from.next_double_normal_sample();
  return state;
}

RandomState RandomState::seeded(std::uint64_t seed) {
  RandomState state;
  state.engine_ = at::mt19937(seed);
  return state;
}

void RandomState::restore() const {
  at::CPUGeneratorImpl& to = generator();
  to.set_engine(engine_);
  to.set_next_float_normal_sample(normal_float_);
  to.set_next_double_normal_sample(normal_double_);
}

} // namespace tessera::runtime
