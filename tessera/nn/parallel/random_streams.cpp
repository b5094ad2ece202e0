#include "tessera/nn/parallel/random_streams.h"

#include <cstdint>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "tessera/base/hash.h"

namespace tessera::nn {

namespace {

std::uint64_t number_of_default_generator() {
  static const at::Generator instance = at::detail::getDefaultCPUGenerator();
  auto* generator = at::check_generator<at::CPUGeneratorImpl>(instance);
  const std::lock_guard lock(generator->mutex_);
  return generator->random64();
}

DrawMask mask_of(const at::Tensor& like, double probability, std::uint64_t seed) {
  return [=] { return dropout_mask(like, probability, seed); };
}

} // namespace

at::Tensor dropout_mask(const at::Tensor& like, double probability, std::uint64_t seed) {
  if (like.is_meta()) {
    return at::empty_like(like); // only shapes are traced, so nothing is drawn
  }
  at::Generator stream = at::globalContext().defaultGenerator(like.device()).clone();
  stream.set_current_seed(seed);
  const at::NoGradGuard no_grad;
  return at::empty_like(like, at::MemoryFormat::Contiguous)
      .bernoulli_(1 - probability, stream)
      .div_(1 - probability);
}

std::uint64_t stream_of_shard(const TensorParallel& parallel) {
  const std::uint64_t number = number_of_default_generator();
  return mix_bits(number + static_cast<std::uint64_t>(parallel.rank()) + kMixStep);
}

DrawMask sharded_mask(const TensorParallel& parallel, const at::Tensor& like, double probability) {
  return mask_of(like, probability, stream_of_shard(parallel));
}

DrawMask
replicated_mask(const TensorParallel& parallel, const at::Tensor& like, double probability) {
  std::uint64_t number = number_of_default_generator();
  if (parallel.size() > 1 && !parallel.shapes_only) {
    const at::Tensor seed = at::full({1}, static_cast<std::int64_t>(number), at::kLong);
    parallel.group->broadcast(seed, 0);
    number = static_cast<std::uint64_t>(*seed.data_ptr<std::int64_t>());
  }
  return mask_of(like, probability, mix_bits(number + kMixStep));
}

} // namespace tessera::nn
