// Distributed layers that a script builds itself, marked nowhere: training, clipping, which
// gradients are averaged where, state dictionaries, checkpoints of other layouts.
#include <filesystem>

#include <unistd.h>

#include <gmock/gmock.h>

#include "tessera/model/model_core.h"
#include "tessera/nn/layers/embedding.h"
#include "tessera/nn/layers/linear.h"
#include "tessera/nn/layers/transformer_layer.h"
#include "tessera/state/layout.h"

#include "tests/mpi/tensor_parallel/support.h"

namespace tessera::testing {
namespace {

nn::TransformerOptions direct_layer() {
  nn::TransformerOptions options;
  options.num_attention_heads = 4;
  options.attention_head_size = 3;
  options.hidden_size = kWidth;
  options.intermediate_size = kInner;
  options.attention_dropout_prob = 0;
  options.hidden_dropout_prob = 0;
  return options;
}

/// Takes tokens [B, S], gives logits [B, S, kWords].
struct DirectImpl : torch::nn::Module {
  DirectImpl() {
    nn::DistributedEmbeddingOptions table;
    table.num_embeddings = kWords;
    table.embedding_dim = kWidth;
    table.initializer_range = 0.5;
    words = register_module("words", nn::DistributedEmbedding(table));
    layer = register_module("layer", nn::DistributedTransformerLayer(direct_layer()));
    plain = register_module("plain", nn::Linear(kWidth, kWidth));
    nn::DistributedLayerNormOptions normed;
    normed.hidden_size = kWidth;
    norm = register_module("norm", nn::DistributedLayerNorm(normed));
    last = register_module("last", nn::DistributedLinear(kWidth, kWords));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    const torch::Tensor none;
    const auto x = std::get<0>(layer(words(ids), none, none, none));
    return last(norm(x + plain(x)));
  }
  nn::DistributedEmbedding words{nullptr};
  nn::DistributedTransformerLayer layer{nullptr};
  nn::Linear plain{nullptr};
  nn::DistributedLayerNorm norm{nullptr};
  nn::DistributedLinear last{nullptr};
};
TESSERA_MODULE(Direct);

struct DirectLayout {
  int pp, tp;
  bool prescaled;
  std::string optimize;
};

std::vector<DirectLayout> direct_layouts() {
  std::vector<DirectLayout> layouts;
  for (const bool prescaled : {false, true}) {
    for (const char* optimize : {"speed", "memory"}) {
      if (world_size() == 2) {
        layouts.push_back({1, 2, prescaled, optimize});
      } else {
        layouts.push_back({1, 4, prescaled, optimize});
        layouts.push_back({2, 2, prescaled, optimize});
        layouts.push_back({1, 2, prescaled, optimize});
      }
    }
  }
  return layouts;
}

std::string text_of_direct(const DirectLayout& layout) {
  return str(
      "pp ",
      layout.pp,
      ", tp ",
      layout.tp,
      ", prescaled ",
      layout.prescaled,
      ", ",
      layout.optimize);
}

Config config_for(const DirectLayout& layout) {
  Config config = tp_config(layout.pp, layout.tp, layout.prescaled);
  config.optimize = layout.optimize;
  return config;
}

/// Before `init` it is whole.
Direct whole_direct() {
  torch::manual_seed(31);
  return Direct();
}

constexpr double kMaxNorm = 0.4;

struct Clipped {
  std::vector<double> norms;
  TensorMap state;
};

Clipped plain_training() {
  Direct net = whole_direct();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.3).momentum(0.9));
  Clipped result;
  for (int i = 0; i < 4; ++i) {
    const Batch batch = word_batch(i);
    optimizer.zero_grad();
    word_loss(net(batch.x), batch.y).backward();
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(net->parameters(), kMaxNorm));
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) {
    result.state[item.key()] = item.value().detach().clone();
  }
  return result;
}

TEST(DirectUse, TrainsAndClipsAsOneProcess) {
  const Clipped wanted = plain_training();
  ASSERT_GT(wanted.norms.front(), kMaxNorm);
  TensorMap start;
  for (const auto& item : whole_direct()->named_parameters()) {
    start[item.key()] = item.value().detach().clone();
  }
  for (const DirectLayout& layout : direct_layouts()) {
    SCOPED_TRACE(text_of_direct(layout));
    init(config_for(layout));
    const Ended ended;
    torch::manual_seed(5 + rank());
    DistributedModel model{Direct()};
    model.load_state_dict(start);
    DistributedOptimizer optimizer(
        torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.3).momentum(0.9)));
    auto train_step = word_step(model);
    for (std::size_t i = 0; i < wanted.norms.size(); ++i) {
      const Batch mine = mine_of(word_batch(static_cast<int>(i)));
      optimizer.zero_grad();
      train_step(mine.x, mine.y);
      EXPECT_NEAR(optimizer.clip_grad_norm(kMaxNorm), wanted.norms[i], 1e-4 * wanted.norms[i]);
      optimizer.step();
    }
    const TensorMap got = model.state_dict();
    EXPECT_EQ(got.size(), wanted.state.size());
    for (const auto& [name, tensor] : wanted.state) {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_LE(relative_error(got.at(name), tensor), 1e-4) << name;
    }
  }
}

// Weights of the products met the samples of the whole TP_GROUP; what is applied to a rank's own
// samples did not.
TEST(DirectUse, EveryParameterHasItsReducer) {
  const auto full = whole_direct()->named_parameters();
  for (const DirectLayout& layout : direct_layouts()) {
    SCOPED_TRACE(text_of_direct(layout));
    init(config_for(layout));
    const Ended ended;
    torch::manual_seed(5);
    DistributedModel model{Direct()};
    const Batch mine = mine_of(word_batch(0));
    word_step(model)(mine.x, mine.y);
    std::set<std::string> scaled;
    for (const auto& [name, tensor] : model.scaled_batch_reducer_named_parameters()) {
      scaled.insert(name);
      EXPECT_TRUE(model.is_scaled_batch_parameter(tensor)) << name;
    }
    std::size_t others = 0;
    for (const auto& [name, tensor] : model.default_reducer_named_parameters()) {
      ++others;
      EXPECT_FALSE(scaled.contains(name)) << name;
      EXPECT_FALSE(model.is_scaled_batch_parameter(tensor)) << name;
    }
    EXPECT_EQ(scaled.size() + others, model.local_parameters().size());
    for (const auto& [name, tensor] : model.local_parameters()) {
      const bool divided = tensor.sizes() != full[name].sizes();
      EXPECT_EQ(model.is_distributed_parameter(tensor), divided) << name;
      if (name == "words.weight" || name == "last.weight" ||
          name == "layer.attention.query_key_value.weight") {
        EXPECT_TRUE(divided && scaled.contains(name)) << name;
      }
      if (name.starts_with("plain.")) {
        EXPECT_FALSE(divided || scaled.contains(name)) << name;
      }
    }
    EXPECT_FALSE(model.is_distributed_parameter(torch::zeros({2})));
    EXPECT_FALSE(model.is_distributed_buffer(torch::zeros({2})));
    // The modules themselves, with those inside them.
    std::set<std::string> names;
    for (const auto& [name, module] : model.distributed_modules()) {
      names.insert(name);
      EXPECT_NE(dynamic_cast<nn::DistributedModule*>(module.get()), nullptr) << name;
    }
    EXPECT_FALSE(names.contains("plain"));
    std::set<std::string> everywhere;
    for (const auto& list : allgather(std::vector<std::string>(names.begin(), names.end()))) {
      everywhere.insert(list.begin(), list.end());
    }
    for (const char* name : {"words", "layer", "layer.attention", "layer.output", "norm", "last"}) {
      EXPECT_TRUE(everywhere.contains(name)) << name;
    }
  }
}

TEST(DirectUse, CheckpointsGoToOtherLayouts) {
  int id = static_cast<int>(::getpid());
  MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
  const std::string folder =
      (std::filesystem::temp_directory_path() / str("tessera_direct_", id)).string();
  std::string hash;
  TensorMap wanted;
  const auto layouts = direct_layouts();
  for (std::size_t i = 0; i <= layouts.size(); ++i) {
    // The last is a single tensor-parallel rank.
    const DirectLayout layout =
        i < layouts.size() ? layouts[i] : DirectLayout{world_size(), 1, false, "speed"};
    SCOPED_TRACE(text_of_direct(layout));
    init(config_for(layout));
    const Ended ended;
    torch::manual_seed(5 + static_cast<int>(i));
    DistributedModel model{Direct()};
    DistributedOptimizer optimizer = adam(model.parameters());
    auto train_step = word_step(model);
    const Batch mine = mine_of(word_batch(0));
    if (i == 0) {
      train_step(mine.x, mine.y);
      optimizer.step();
      hash = save(model, optimizer, folder, "first").state_hash;
      wanted = model.state_dict();
      continue;
    }
    ASSERT_TRUE(load(model, optimizer, folder, {.tag = "first"}).has_value());
    auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
    {
      const torch::NoGradGuard no_grad;
      forward(mine.x); // the partition, and with it the loading
    }
    expect_same_bits(model.state_dict(), wanted);
    EXPECT_EQ(save(model, optimizer, folder, str("again_", i)).state_hash, hash);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (id == static_cast<int>(::getpid())) {
    std::filesystem::remove_all(folder);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

} // namespace
} // namespace tessera::testing
