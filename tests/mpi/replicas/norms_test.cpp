// Optimizers whose updates need norms of whole parameters: one process's numbers under every
// layout.
#include <map>
#include <memory>

#include "tessera/context/context.h"
#include "tessera/nn/module/fused_layer_norm.h"
#include "tessera/optim/fused.h"

#include "tests/mpi/optim/support.h"
#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kUpdates = 3;

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

std::map<std::string, Make> optimizers() {
  return {
      {"LAMB",
       [](auto list) {
         return std::make_unique<optim::Lamb>(
             std::move(list), optim::LambOptions(0.05).max_grad_norm(0.05));
       }},
      {"LAMB with ratios everywhere",
       [](auto list) {
         return std::make_unique<optim::FusedLamb>(
             std::move(list), optim::LambOptions(0.05).weight_decay(0).use_nvlamb(true));
       }},
      {"NovoGrad",
       [](auto list) {
         return std::make_unique<optim::FusedNovoGrad>(
             std::move(list), optim::NovoGradOptions(0.05).weight_decay(0.1));
       }},
      {"NovoGrad of algorithm 1", [](auto list) {
         return std::make_unique<optim::NovoGrad>(
             std::move(list),
             optim::NovoGradOptions(0.05).weight_decay(0.1).reg_inside_moment(true));
       }}};
}

struct Training {
  explicit Training(const Make& make)
      : model{made(dp_rank() == 0 ? 7 : 8)}, optimizer(make(model.parameters())) {}
  void step() {
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    optimizer.zero_grad();
    step_of(model)(mine.x, mine.y);
    optimizer.step();
  }
  DistributedModel<Chain> model;
  DistributedOptimizer optimizer;
};

TensorMap plain(const Make& make, int steps) {
  Chain chain = made(7);
  const auto optimizer = make(chain->parameters());
  for (int i = 0; i < steps; ++i) {
    optimizer->zero_grad();
    torch::mse_loss(chain(batch_of().x), batch_of().y).backward();
    optimizer->step();
  }
  return state_of(chain);
}

std::map<std::string, Config> configs() {
  std::map<std::string, Config> configs;
  for (const Layout& layout : layouts()) {
    configs.emplace(layout.text(), config_of(layout));
  }
  if (world_size() == 4) {
    Config mesh = config_of(Layout{1, 4});
    mesh.tensor_parallel_kind = "2d";
    configs.emplace("a mesh of 2 x 2", mesh);
  }
  return configs;
}

TEST(NormsOfParameters, AreThoseOfOneProcess) {
  for (const auto& [name, make] : optimizers()) {
    const TensorMap wanted = plain(make, kUpdates);
    for (const auto& [layout, config] : configs()) {
      init(config);
      const Ended ended;
      Training run(make);
      for (int i = 0; i < kUpdates; ++i) {
        run.step();
      }
      expect_state(run.model.state_dict(), wanted, name + ", " + layout);
      for (const auto& [parameter, tensor] : run.model.local_parameters()) {
        for (const torch::Tensor& other : allgather(tensor.detach(), Group::kRDP)) {
          EXPECT_TRUE(other.equal(tensor.detach())) << name << ", " << layout << ", " << parameter;
        }
      }
    }
  }
}

TEST(NormsOfParameters, GoOnFromACheckpointOfAnotherLayout) {
  for (const auto& [name, make] : optimizers()) {
    const SharedFolder folder;
    init(config_of(layouts().front()));
    {
      const Ended ended;
      Training run(make);
      run.step();
      tessera::save(run.model, run.optimizer, folder.path(), "one");
    }
    const TensorMap wanted = plain(make, 2);
    for (const auto& [layout, config] : configs()) {
      init(config);
      const Ended ended;
      Training run(make);
      ASSERT_TRUE(tessera::load(run.model, run.optimizer, folder.path())) << layout;
      run.step();
      expect_state(run.model.state_dict(), wanted, name + ", " + layout);
    }
  }
}

/// A table whose gradient is sparse, on the first rank, before a layer on the last one.
struct TableImpl : torch::nn::Module {
  TableImpl() {
    table = register_module(
        "table", nn::Embedding(torch::nn::EmbeddingOptions(5, kWidth).sparse(true)));
    last = register_module("last", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return last(table(ids));
  }
  nn::Embedding table{nullptr};
  nn::Linear last{nullptr};
};
TESSERA_MODULE(Table);

TEST(NormsOfParameters, ASparseGradientIsAnErrorOnEveryRank) {
  for (const auto& [name, make] : optimizers()) {
    const int pp = std::min(2, world_size());
    init(placed(pp, 1, {{"last", pp - 1}}));
    const Ended ended;
    DistributedModel model{Table()};
    DistributedOptimizer optimizer(make(model.parameters()));
    auto step = tessera::step([&](torch::Tensor ids) { model.backward(model(ids).pow(2).mean()); });
    step(torch::tensor({1, 3}));
    EXPECT_THAT(
        error_of<UserError>([&] { optimizer.step(); }),
        AllOf(HasSubstr("[5, 8] is sparse"), HasSubstr("make the embedding dense")))
        << name;
  }
}

// The name that the documentation has for it.
TEST(FusedLayerNorm, IsLibtorchsNorm) {
  const torch::Tensor x = random_batches()(0).x;
  nn::FusedLayerNorm norm(torch::nn::LayerNormOptions({kWidth}));
  EXPECT_TRUE(norm(x).equal(torch::layer_norm(x, {kWidth}, norm->weight, norm->bias)));
}

// torch's AdamW with another default.
struct Asking : optim::Lamb {
  using Lamb::Lamb;
  void ask() const {
    norms_of({});
  }
};

// What answers refers to a DistributedOptimizer, which may move between updates.
TEST(NormsOfParameters, AreAskedForInAnUpdateAlone) {
  const int pp = std::min(2, world_size());
  init(config_of(Layout{pp, 1}));
  const Ended ended;
  Training run([](auto list) { return std::make_unique<Asking>(std::move(list)); });
  run.step();
  const auto& calls = context().group(Group::kWorld).traffic().calls;
  const auto before = calls.load();
  dynamic_cast<const Asking&>(run.optimizer.inner()).ask();
  EXPECT_EQ(calls.load(), before);
}

TEST(FusedAdam, DecaysNothingUnlessAsked) {
  const Make fused = [](auto list) { return std::make_unique<optim::FusedAdam>(std::move(list)); };
  const Make torchs = [](auto list) {
    return std::make_unique<torch::optim::AdamW>(
        std::move(list), torch::optim::AdamWOptions().weight_decay(0));
  };
  const TensorMap wanted = plain(torchs, kUpdates);
  for (const auto& [layout, config] : configs()) {
    init(config);
    const Ended ended;
    Training run(fused);
    for (int i = 0; i < kUpdates; ++i) {
      run.step();
    }
    expect_state(run.model.state_dict(), wanted, layout);
  }
}

TEST(FusedAdam, DecaysNothingWithARateOfItsOwn) {
  const auto expect_rate = [](const optim::FusedAdam& optimizer) {
    const auto& options =
        static_cast<const torch::optim::AdamWOptions&>(optimizer.param_groups().front().options());
    EXPECT_EQ(options.lr(), 3e-4);
    EXPECT_EQ(options.weight_decay(), 0);
  };
  const std::vector<torch::Tensor> list = {torch::ones({2}, torch::requires_grad())};
  expect_rate(optim::FusedAdam(list, 3e-4));
  expect_rate(optim::FusedAdam(list, optim::FusedAdamOptions(3e-4)));
}

} // namespace
} // namespace tessera::testing
