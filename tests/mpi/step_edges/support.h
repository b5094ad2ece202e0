#pragma once

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {

/// One replica over all ranks, or replicas of two pipeline ranks: (pp, dp).
inline std::vector<int> pipelines() {
  switch (world_size()) {
    case 1:
      return {1};
    case 2:
      return {1, 2};
    default:
      return {2, 4};
  }
}

inline std::string text_of(int pp, int microbatches) {
  return str("pp ", pp, " of ", world_size(), " ranks, microbatches ", microbatches);
}

/// Blocks one after the other, one on each pp rank and more.
struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    first = register_module("first", Block());
    second = register_module("second", Block());
    third = register_module("third", Block());
    last = register_module("last", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(third(second(first(x))));
  }
  Block first{nullptr}, second{nullptr}, third{nullptr}, last{nullptr};
};
TESSERA_MODULE(Chain);

/// The same on all ranks and in every call.
inline torch::Tensor some_rows() {
  torch::manual_seed(60);
  return torch::randn({8, kWidth});
}
inline Chain made_chain() {
  torch::manual_seed(7);
  return Chain();
}

/// Block i of a chain on pp rank i, as far as there are ranks; nothing is traced.
inline Config chain_config(int pp, int microbatches) {
  std::map<std::string, int> partition;
  int i = 0;
  for (const char* name : {"first", "second", "third", "last"}) {
    partition[name] = std::min(i++, pp - 1);
  }
  return placed(pp, microbatches, partition);
}

} // namespace tessera::testing
