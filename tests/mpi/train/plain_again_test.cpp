// Model::cpu: the ordinary module of one process, of whatever layout the model was.
#include <algorithm>
#include <string>
#include <vector>

#include "tessera/nn/module/remote_tensor.h"
#include "tessera/nn/parallel/distributed_module.h"

#include "tests/mpi/optim/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 3;

/// Layers that tensor parallelism replaces, a shared parameter, buffers, a Sequential, a frozen
/// parameter.
struct WholeImpl : torch::nn::Module {
  WholeImpl() {
    torch::manual_seed(7);
    chain = register_module("chain", Chain());
    norm = register_module("norm", nn::BatchNorm1d(kWidth));
    body = register_module("body", nn::Sequential(nn::Linear(kWidth, kWidth), nn::Tanh()));
    twice = register_module("twice", nn::Linear(kWidth, kWidth));
    again = register_parameter("again", twice->weight);
    frozen = register_parameter("frozen", torch::randn({kWidth}), /*requires_grad=*/false);
    steps = register_buffer("steps", torch::zeros({}, torch::kLong));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (is_training()) {
      steps.add_(1);
    }
    return twice(body(norm(chain(x)))).matmul(again) * frozen;
  }
  Chain chain{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Sequential body{nullptr};
  nn::Linear twice{nullptr};
  torch::Tensor again, frozen, steps;
};
TESSERA_MODULE(Whole);

struct PlainCase {
  std::string text;
  Config config;
  bool delayed = false;
};

Config config_for(int pp, int tp) {
  Config config = placed(
      pp, 2, {{"chain.b", 1 % pp}, {"chain.c", pp / 2}, {"norm", pp - 1}, {"body.0", 1 % pp}});
  config.tensor_parallel_degree = tp;
  config.ddp = world_size() > pp;
  return config;
}

std::vector<PlainCase> plain_cases() {
  std::vector<PlainCase> list;
  for (const Layout& layout : layouts()) {
    list.push_back({layout.text(), config_for(layout.pp, layout.tp)});
  }
  PlainCase delayed = list.back();
  delayed.text += ", delayed";
  delayed.delayed = true;
  list.push_back(delayed);
  PlainCase mesh{"mesh", config_for(1, world_size())};
  mesh.config.tensor_parallel_kind = "2d";
  mesh.config.ddp = true;
  if (world_size() == 4) {
    list.push_back(mesh);
  }
  PlainCase sharded{"sharded parameters", config_for(1, 1)};
  sharded.config.ddp = true;
  sharded.config.sharded_data_parallel_degree = 2;
  sharded.config.sdp_param_persistence_threshold = 0;
  sharded.config.sdp_gradient_clipping = 1e9;
  list.push_back(sharded);
  return list;
}

Whole made_for(const PlainCase& entry) {
  const delay_param_initialization delayed(entry.delayed);
  return {};
}

DistributedOptimizer plain_sgd(const std::vector<torch::Tensor>& parameters) {
  return DistributedOptimizer(torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1)));
}

void train(DistributedModel<Whole>& model, DistributedOptimizer& optimizer, int first) {
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  for (int step = first; step < first + kSteps; ++step) {
    const Batch mine = part_of(random_batches(16)(step), data_size(), data_rank());
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
}

void expect_ordinary(const Whole& net, const TensorMap& wanted, const std::string& text) {
  std::set<std::string> names;
  for (const auto& list : {net->named_parameters(), net->named_buffers()}) {
    for (const auto& item : list) {
      if (item.key() == "again") { // under its first name, `twice.weight` comes later
        EXPECT_TRUE(item.value().is_same(net->twice->weight)) << text;
      }
      const std::string name = wanted.contains(item.key()) ? item.key() : "again";
      names.insert(name);
      EXPECT_EQ(nn::remote_tensor(item.value()), nullptr) << text << ", " << item.key();
      EXPECT_TRUE(item.value().detach().equal(wanted.at(name))) << text << ", " << item.key();
      EXPECT_FALSE(item.value().grad().defined()) << text << ", " << item.key();
    }
  }
  EXPECT_EQ(names.size(), wanted.size()) << text;
  EXPECT_FALSE(net->frozen.requires_grad()) << text;
  for (const auto& module : net->modules()) {
    EXPECT_EQ(dynamic_cast<const nn::DistributedModule*>(module.get()), nullptr) << text;
  }
}

TEST(Cpu, LeavesTheWholeModelOnEveryRank) {
  for (const PlainCase& entry : plain_cases()) {
    init(entry.config);
    const Ended ended;
    DistributedModel model(made_for(entry));
    DistributedOptimizer optimizer = plain_sgd(model.parameters());
    train(model, optimizer, 0);
    const TensorMap wanted = model.state_dict();
    model.cpu();
    Whole net = model.net();
    expect_ordinary(net, wanted, entry.text);
    EXPECT_FALSE(model.partitioned()) << entry.text;
    // A plain script with the same numbers.
    Whole plain;
    {
      const torch::NoGradGuard no_grad;
      for (const auto& list : {plain->named_parameters(), plain->named_buffers()}) {
        for (const auto& item : list) {
          const bool known = wanted.contains(item.key());
          item.value().detach().copy_(wanted.at(known ? item.key() : "again"));
        }
      }
    }
    plain->eval();
    net->eval();
    const Batch batch = random_batches(16)(9);
    EXPECT_LE(relative_error(net(batch.x), plain(batch.x)), 1e-6) << entry.text;
    EXPECT_LE(relative_error(model(batch.x), plain(batch.x)), 1e-6) << entry.text;
    torch::mse_loss(net(batch.x), batch.y).backward();
    torch::mse_loss(plain(batch.x), batch.y).backward();
    for (const auto& item : plain->named_parameters()) {
      const torch::Tensor* mine = net->named_parameters().find(item.key());
      ASSERT_NE(mine, nullptr) << item.key();
      if (item.value().requires_grad()) {
        EXPECT_LE(relative_error(mine->grad(), item.value().grad()), 1e-5) << item.key();
      }
    }
  }
}

// And the same layout may take the module again.
TEST(Cpu, LeavesAModuleThatCanBeDividedAnew) {
  for (const PlainCase& entry : plain_cases()) {
    const auto trained = [&](bool between) {
      init(entry.config);
      const Ended ended;
      auto model = std::make_unique<DistributedModel<Whole>>(made_for(entry));
      auto optimizer = std::make_unique<DistributedOptimizer>(plain_sgd(model->parameters()));
      train(*model, *optimizer, 0);
      if (between) {
        model->cpu();
        const Whole net = model->net();
        optimizer.reset();
        model = std::make_unique<DistributedModel<Whole>>(net);
        optimizer = std::make_unique<DistributedOptimizer>(plain_sgd(model->parameters()));
      }
      train(*model, *optimizer, kSteps);
      return model->state_dict();
    };
    const TensorMap wanted = trained(false);
    for (const auto& [name, tensor] : trained(true)) {
      EXPECT_LE(relative_error(tensor, wanted.at(name)), 1e-6) << entry.text << ", " << name;
    }
  }
}

/// A model that is replaced as a whole.
TEST(Cpu, PutsBackARootThatWasReplaced) {
  if (world_size() != 2) {
    return;
  }
  Config config = config_of(1, 2);
  config.tensor_parallel_degree = 2;
  config.ddp = true;
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  const nn::Linear linear = [] {
    const tensor_parallelism marked;
    return nn::Linear(kWidth, 2 * kWidth);
  }();
  const torch::Tensor wanted = linear->weight.detach().clone();
  DistributedModel model(linear);
  EXPECT_NE(model.get_module(), linear.ptr());
  model.cpu();
  EXPECT_EQ(model.get_module(), linear.ptr());
  EXPECT_TRUE(linear->weight.detach().equal(wanted));
  const torch::Tensor x = torch::ones({2, kWidth});
  EXPECT_TRUE(linear(x).equal(torch::nn::functional::linear(x, linear->weight, linear->bias)));
}

TEST(Cpu, IsTheEndOfTheModelInSteps) {
  init(config_for(layouts().front().pp, 1));
  const Ended ended;
  DistributedModel model{Whole()};
  DistributedModel other{Whole()};
  if (pp_size() > 1) {
    EXPECT_THAT(error_of<ConfigError>([&] { model.cpu(); }), HasSubstr("not partitioned yet"));
  }
  DistributedOptimizer optimizer = plain_sgd(model.parameters());
  DistributedOptimizer of_other = plain_sgd(other.parameters());
  train(model, optimizer, 0);
  train(other, of_other, 0);
  auto inside = tessera::step([&](torch::Tensor x) {
    model.cpu();
    return x;
  });
  EXPECT_THAT(
      error_of<UserError>([&] {
        inside(torch::ones({4, kWidth}));
      }),
      HasSubstr("called inside a step function"));
  model.cpu();
  EXPECT_THAT(error_of<ConfigError>([&] { model.cpu(); }), HasSubstr("since its cpu()"));
  EXPECT_THAT(error_of<ConfigError>([&] { model.state_dict(); }), HasSubstr("since its cpu()"));
  EXPECT_THAT(error_of<UserError>([&] { optimizer.step(); }), HasSubstr("since its cpu()"));
  auto call = tessera::step([&](torch::Tensor x) { return model(x); });
  EXPECT_THAT(
      error_of<UserError>([&] {
        call(torch::ones({4, kWidth}));
      }),
      HasSubstr("since its cpu()"));
  train(other, of_other, kSteps); // the other model goes on
}

} // namespace
} // namespace tessera::testing
