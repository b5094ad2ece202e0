#pragma once

#include <string>
#include <vector>

#include "models/gpt.h"
#include "tests/mpi/runtime/support.h"

/// A GPT on meshes of 1 x 2, 2 x 2 and 2 x 3 ranks, whose sizes no mesh divides. All biases and all
/// weights of norms lie on the mesh's first row.
namespace tessera::testing {

constexpr int kTokens = 6;
constexpr int kVocabulary = 33;
constexpr int kMicrobatches = 2;

/// As many for each microbatch of each rank.
inline int samples() {
  return world_size() == 6 ? 24 : 16;
}

inline models::Gpt made_gpt(const nn::OptionValues& given = {}) {
  models::GptOptions options;
  options.vocab_size = kVocabulary;
  options.n_positions = 7;
  options.n_embd = 12;
  options.n_layer = 2;
  options.n_head = 3; // 2 and 1 on two columns
  options.n_inner = 25;
  options.dropout = 0;
  const tensor_parallelism marked(true, given);
  return models::Gpt(options);
}

inline Batch tokens_of(int step) {
  torch::manual_seed(500 + step);
  const auto start = torch::randint(0, kVocabulary, {samples(), 1});
  const auto text = (start + torch::arange(kTokens + 1)) % kVocabulary;
  return {text.narrow(1, 0, kTokens).contiguous(), text.narrow(1, 1, kTokens).contiguous()};
}

inline Batch tokens_here(int step) {
  return part_of(tokens_of(step), data_size(), data_rank());
}

inline torch::Tensor token_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.flatten());
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
