#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/mpi/sharding/support.h"
#include "tests/support/tensor_parallel.h"

/// Sharded data parallelism beside pipelines and tensor parallelism.
namespace tessera::testing {

struct Layout {
  int pp = 1;
  int tp = 1;
  int degree = 1; // of sharding; 1: none
  bool mesh = false; // of the tensor-parallel ranks
};

inline std::string text_of(const Layout& layout) {
  return str(
      "pp ",
      layout.pp,
      ", tp ",
      layout.tp,
      layout.mesh ? " as a mesh" : "",
      ", sharded ",
      layout.degree);
}

/// Of 4 ranks, or of 8 with several replicas of a shard group or all three ways together.
inline std::vector<Layout> sharded_layouts() {
  if (world_size() == 4) {
    return {{2, 1, 2}, {1, 2, 2}, {1, 2, 2, true}};
  }
  return {{2, 2, 2}, {2, 1, 2}, {1, 2, 2}, {4, 1, 2}, {1, 4, 2, true}, {2, 2, 2, true}};
}

inline Config layout_config(const Layout& layout, int microbatches) {
  Config config = config_of(layout.pp, microbatches);
  config.ddp = true;
  config.tensor_parallel_degree = layout.tp;
  config.prescaled_batch = layout.tp > 1;
  config.tensor_parallel_kind = layout.mesh ? "2d" : "1d";
  if (layout.degree > 1) {
    config.sharded_data_parallel_degree = layout.degree;
    config.sdp_param_persistence_threshold = 0;
    config.sdp_gradient_clipping = kNoClipping;
  }
  return config;
}

/// Different samples that a step meets one after the other.
inline int slices_of(const Layout& layout, int microbatches) {
  return microbatches * world_size() / layout.pp / layout.tp;
}

/// Modules that tensor parallelism replaces and others, on all stages; one of two branches that the
/// first sample's first token chooses, a module that is called twice, a weight of two modules.
/// Takes tokens [B, S].
struct LayeredImpl : torch::nn::Module {
  LayeredImpl() {
    {
      const tensor_parallelism marked;
      words = register_module("words", nn::Embedding(kWords, kWidth));
      in = register_module("in", nn::Linear(kWidth, kWidth));
      norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
      last = register_module("last", nn::Linear(kWidth, kWords));
    }
    even = register_module("even", Block());
    odd = register_module("odd", Block());
    first = register_module("first", Projection(torch::Tensor()));
    body = register_module("body", nn::Sequential(Block(), nn::Tanh(), Block()));
    second = register_module("second", Projection(first->weight));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    auto x = in(words(ids));
    x = ids[0][0].item<std::int64_t>() % 2 == 0 ? even(x) : odd(x);
    x = second(body(first(x))) + in(x);
    return last(norm(x));
  }
  nn::Embedding words{nullptr};
  nn::Linear in{nullptr}, last{nullptr};
  nn::LayerNorm norm{nullptr};
  Block even{nullptr}, odd{nullptr};
  Projection first{nullptr}, second{nullptr};
  nn::Sequential body{nullptr};
};
TESSERA_MODULE(Layered);

/// The first token chooses a branch: all samples of a step the same one, so that it is the same
/// however the batch is cut; or, with `mixed`, other samples another one, so that slices differ.
inline Batch word_batch(int step, bool mixed = false) {
  torch::manual_seed(700 + step);
  constexpr unsigned kRows = 16;
  auto words = torch::randint(0, kWords, {kRows, 5});
  for (unsigned row = 0; row < kRows; ++row) {
    // In this sequence rows at a distance of 2, 4 or 8 are not all alike.
    words[row][0] = (step + (mixed ? std::popcount(row) : 0)) % 2;
  }
  return {words, torch::randint(0, kWords, {kRows, 5})};
}

inline torch::Tensor word_loss(const torch::Tensor& logits, const torch::Tensor& y) {
  return torch::nn::functional::cross_entropy(logits.to(torch::kFloat).flatten(0, 1), y.flatten());
}

inline torch::optim::AdamW adamw(const std::vector<torch::Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

/// What is trained, and how.
struct Kind {
  int microbatches = 2;
  int passes = 1;
  double clip = kNoClipping;
  bool recompute = false;
  bool mixed = false; // slices of one step take different branches
};

struct Result {
  TensorMap state;
  std::vector<double> norms;
};

constexpr int kUpdates = 4;

/// The script without this library, on the same slices of batches.
inline Result train_alone(const Kind& kind, int slices) {
  torch::manual_seed(7);
  Layered net;
  std::vector<torch::Tensor> unique;
  for (const auto& parameter : net->parameters()) {
    if (std::none_of(unique.begin(), unique.end(), [&](const auto& known) {
          return known.is_same(parameter);
        })) {
      unique.push_back(parameter);
    }
  }
  torch::optim::AdamW optimizer = adamw(unique);
  Result result;
  for (int i = 0; i < kUpdates; ++i) {
    optimizer.zero_grad();
    for (int pass = 0; pass < kind.passes; ++pass) {
      const Batch batch = word_batch(kind.passes * i + pass, kind.mixed);
      for (int slice = 0; slice < slices; ++slice) {
        const Batch part = part_of(batch, slices, slice);
        (word_loss(net(part.x), part.y) / slices).backward();
      }
    }
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(unique, kind.clip));
    optimizer.step();
  }
  std::set<const void*> seen;
  for (const auto& item : net->named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.state[item.key()] = item.value().detach();
    }
  }
  return result;
}

/// The same with it.
inline Result train_together(Config config, const Kind& kind) {
  if (config.sharded_data_parallel_degree > 1) {
    config.sdp_gradient_clipping = kind.clip;
  }
  init(config);
  const Ended ended;
  torch::manual_seed(dp_rank() == 0 ? 7 : 8);
  Layered net;
  if (kind.recompute) {
    set_activation_checkpointing(net->body, {.strategy = "each"});
  }
  ModelOptions options;
  options.backward_passes_per_step = kind.passes;
  DistributedModel model(net, options);
  DistributedOptimizer optimizer(adamw(model.parameters()));
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(word_loss(model(x), y)); });
  Result result;
  for (int i = 0; i < kUpdates; ++i) {
    optimizer.zero_grad();
    for (int pass = 0; pass < kind.passes; ++pass) {
      const Batch mine =
          part_of(word_batch(kind.passes * i + pass, kind.mixed), data_size(), data_rank());
      train_step(mine.x, mine.y);
    }
    optimizer.step();
    result.norms.push_back(optimizer.global_grad_norm());
  }
  result.state = model.state_dict();
  return result;
}

inline void expect_alone(
    const Config& config,
    const Layout& layout,
    const Kind& kind,
    const std::string& what) {
  const std::string here = str(what, ", ", text_of(layout), ", microbatches ", kind.microbatches);
  const Result wanted = train_alone(kind, slices_of(layout, kind.microbatches));
  const Result got = train_together(config, kind);
  expect_same(got.state, wanted.state, here, 2e-5);
  for (std::size_t i = 0; i < wanted.norms.size(); ++i) {
    EXPECT_NEAR(got.norms[i], wanted.norms[i], 1e-4 * wanted.norms[i]) << here << ", update " << i;
  }
}

} // namespace tessera::testing
