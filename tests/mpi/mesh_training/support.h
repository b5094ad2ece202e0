#pragma once

#include <string>
#include <vector>

#include "tests/mpi/runtime/support.h"
#include "tests/support/uneven_gpt.h"

/// A GPT on meshes of 1 x 2, 2 x 2 and 2 x 3 ranks, whose sizes no mesh divides. All biases and all
/// weights of norms lie on the mesh's first row.
namespace tessera::testing {

constexpr int kMicrobatches = 2;

/// As many for each microbatch of each rank.
inline int samples() {
  return world_size() == 6 ? 24 : 16;
}

inline models::Gpt made_gpt(const nn::OptionValues& given = {}) {
  const tensor_parallelism marked(true, given);
  return models::Gpt(uneven_gpt_options());
}

inline Batch tokens_of(int step) {
  return counting_tokens(step, samples(), kTokens, kVocabulary);
}

inline Batch tokens_here(int step) {
  return part_of(tokens_of(step), data_size(), data_rank());
}

struct Layout {
  std::string kind; // "2d" or "1d"
  int pp = 1;
  int tp = 1;
  bool prescaled = false;

  std::string text() const {
    return str(kind, ", pp ", pp, ", tp ", tp, prescaled ? ", prescaled" : "");
  }
};

/// The first one is a mesh of all ranks.
inline std::vector<Layout> meshes() {
  std::vector<Layout> all = {{"2d", 1, world_size()}, {"2d", 1, world_size(), true}};
  if (world_size() == 4) {
    all.push_back({"2d", 2, 2}); // in a pipeline
    all.push_back({"2d", 1, 2}); // with replicas
    all.push_back({"2d", 1, 2, true});
  }
  return all;
}

/// Those without a mesh.
inline std::vector<Layout> others() {
  switch (world_size()) {
    case 2:
      return {{"1d", 1, 1}, {"1d", 1, 2}, {"1d", 2, 1}};
    case 4:
      return {{"1d", 1, 1}, {"1d", 2, 2}};
    default:
      return {{"1d", 1, 1}, {"1d", 2, 3}};
  }
}

inline Config config_of(const Layout& layout) {
  Config config = config_of(layout.pp, kMicrobatches);
  config.tensor_parallel_degree = layout.tp;
  config.tensor_parallel_kind = layout.kind;
  config.prescaled_batch = layout.prescaled;
  config.transport_buffer_bytes = 16 << 20;
  return config;
}

inline TensorMap parameters_of(const models::Gpt& net) {
  TensorMap result;
  for (const auto& item : net->named_parameters()) {
    if (item.key() != "lm_head.weight") { // shared; listed once
      result[item.key()] = item.value().detach().clone();
    }
  }
  return result;
}

template <typename Net>
auto token_step(const DistributedModel<Net>& model) {
  return tessera::step([&model](torch::Tensor x, torch::Tensor y) {
    auto loss = token_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
}

inline void expect_state(
    const TensorMap& got,
    const TensorMap& wanted,
    const std::string& what,
    double tolerance) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << what << ", " << name;
    EXPECT_LE(relative_error(got.at(name), tensor), tolerance) << what << ", " << name;
  }
}

} // namespace tessera::testing
