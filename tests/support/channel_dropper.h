#pragma once

#include <cstdint>
#include <tuple>

#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/replace/replacement_registry.h"
#include "tessera/tessera.h"

namespace tessera::testing {

/// Drops elements of [samples, ..., channels].
struct ChannelDropperImpl : torch::nn::Module {
  ChannelDropperImpl(std::int64_t channels, double probability)
      : channels(channels), probability(probability) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::dropout(x, probability, is_training());
  }
  std::int64_t channels;
  double probability;
};
TESSERA_MODULE(ChannelDropper);

/// Drops what a distributed layer drops between its products: the part of the activation that lies
/// on this rank, under every tensor_parallel_kind.
struct DistributedChannelDropperImpl : nn::DistributedModule {
  DistributedChannelDropperImpl(std::int64_t channels, double probability)
      : channels(channels), probability(probability) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const nn::TensorParallel parallel = parallel_now();
    const auto samples = nn::samples_of_ranks(parallel, x.size(0));
    const auto dropped = nn::drop(
        parallel,
        nn::enter(parallel, x, samples),
        nn::inside_placement(parallel),
        probability,
        is_training(),
        channels);
    return nn::leave(parallel, dropped, channels, samples);
  }
  std::int64_t channels;
  double probability;
};
TESSERA_MODULE(DistributedChannelDropper);

TESSERA_TP_REGISTER(ChannelDropper, DistributedChannelDropper)
    .init([](const ChannelDropperImpl& dropper) {
      return std::make_tuple(dropper.channels, dropper.probability);
    });

} // namespace tessera::testing
