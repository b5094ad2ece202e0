// Replicas with different numbers of batches: the numbers of one process that adds up what there
// is.
#include "tessera/train/join.h"

#include <algorithm>

#include "tests/mpi/optim/support.h"
#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

/// Buffers, which each replica's forwards change, after layers that pipelines and tensor
/// parallelism divide.
struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    chain = register_module("chain", Chain());
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return chain(norm(x));
  }
  Chain chain{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TESSERA_MODULE(Normed);

Normed normed() {
  torch::manual_seed(7);
  return Normed();
}

struct Uneven {
  std::string text;
  Config config;
};

std::vector<Uneven> uneven() {
  std::vector<Uneven> list;
  Config plain = config_of(1, 1);
  plain.ddp = true;
  list.push_back({"replicas", plain});
  Config owned = plain;
  owned.shard_optimizer_state = true;
  list.push_back({"shard_optimizer_state", owned});
  Config sharded = plain;
  sharded.sharded_data_parallel_degree = 2;
  sharded.sdp_param_persistence_threshold = 0;
  sharded.sdp_gradient_clipping = 1e9;
  list.push_back({"sharded parameters", sharded});
  Config divided = plain;
  divided.tensor_parallel_degree = 2;
  list.push_back({"tensor parallelism", divided});
  if (world_size() == 4) {
    Config pipelines = placed(2, 1, {{"chain.c", 1}, {"chain.d", 1}});
    pipelines.ddp = true;
    list.push_back({"pipelines", pipelines});
    pipelines.static_mode = true;
    pipelines.static_mode_steps = 1;
    list.push_back({"pipelines in static mode", pipelines});
  }
  return list;
}

/// The first replica has the fewest batches.
int batches_of(int replica) {
  return 2 + 2 * replica;
}

Batch batch_at(int step, int part) {
  return part_of(random_batches(24)(step), data_size(), part);
}

/// One process: what the replicas that have data make of it, each from the buffers that all begin
/// with; those of the first of them stay.
TensorMap of_one_process(const JoinOptions& options) {
  const std::vector<int> replica_of = allgather(rdp_rank(), Group::kDP);
  Normed net = normed();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < batches_of(rdp_size() - 1); ++step) {
    std::vector<int> parts;
    for (int part = 0; part < data_size(); ++part) {
      if (step < batches_of(replica_of[part])) {
        parts.push_back(part);
      }
    }
    std::vector<torch::Tensor> begin;
    std::vector<torch::Tensor> kept;
    for (const torch::Tensor& buffer : net->buffers()) {
      begin.push_back(buffer.clone());
    }
    const double divisor =
        options.divide_by_initial_world_size ? data_size() : static_cast<double>(parts.size());
    optimizer.zero_grad();
    for (const int part : parts) {
      for (std::size_t i = 0; i < begin.size(); ++i) {
        net->buffers()[i].copy_(begin[i]);
      }
      const Batch batch = batch_at(step, part);
      (torch::mse_loss(net(batch.x), batch.y) / divisor).backward();
      if (kept.empty()) {
        for (const torch::Tensor& buffer : net->buffers()) {
          kept.push_back(buffer.clone());
        }
      }
    }
    for (std::size_t i = 0; i < begin.size(); ++i) {
      net->buffers()[i].copy_(kept[i]);
    }
    optimizer.step();
  }
  TensorMap state;
  for (const auto& item : net->named_parameters()) {
    state.emplace(item.key(), item.value().detach().clone());
  }
  for (const auto& item : net->named_buffers()) {
    state.emplace(item.key(), item.value().clone());
  }
  return state;
}

TEST(Join, TrainsWithWhatThereIs) {
  for (const bool by_all : {true, false}) {
    for (const Uneven& entry : uneven()) {
      init(entry.config);
      const Ended ended;
      const JoinOptions options{.divide_by_initial_world_size = by_all};
      DistributedModel model{normed()};
      DistributedOptimizer optimizer(
          torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
      auto train_step = tessera::step(
          [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
      int steps = 0;
      int own = 0;
      {
        Join join(model, options);
        Batch batch;
        while (join.next(own < batches_of(rdp_rank()))) {
          EXPECT_EQ(join.joined(), own == batches_of(rdp_rank()));
          if (!join.joined()) {
            batch = batch_at(own++, data_rank());
          }
          optimizer.zero_grad();
          train_step(batch.x, batch.y);
          optimizer.step();
          ++steps;
        }
        EXPECT_THAT(error_of<ConfigError>([&] { join.next(true); }), HasSubstr("make a Join anew"));
      }
      EXPECT_EQ(steps, batches_of(rdp_size() - 1)) << entry.text;
      EXPECT_EQ(own, batches_of(rdp_rank())) << entry.text;
      expect_state(
          model.state_dict(),
          of_one_process(options),
          str(entry.text, by_all ? "" : ", of those with data"));
      for (const auto& [name, buffer] : model.local_buffers()) {
        for (const torch::Tensor& other : allgather(buffer, Group::kRDP)) {
          EXPECT_TRUE(other.equal(buffer)) << entry.text << ", " << name;
        }
      }
    }
  }
}

TEST(Join, CountsAllAlikeAfterwards) {
  init(uneven().front().config);
  const Ended ended;
  DistributedModel model{normed()};
  const auto step = [&] {
    model.zero_grad();
    tessera::step([&](torch::Tensor x, torch::Tensor y) {
      model.backward(torch::mse_loss(model(x), y));
    })(batch_at(0, data_rank()).x, batch_at(0, data_rank()).y);
    return model.net()->chain->d->weight.grad().clone();
  };
  const torch::Tensor wanted = step();
  {
    Join join(model);
    EXPECT_TRUE(join.next(dp_rank() > 0));
    EXPECT_GT(relative_error(step(), wanted), 0.1);
  }
  EXPECT_LE(relative_error(step(), wanted), 1e-6);
}

// With unlike samples those with data are divided by theirs.
TEST(Join, CountsSamplesOfReplicas) {
  const std::vector<int> samples =
      world_size() == 2 ? std::vector<int>{16, 8} : std::vector<int>{8, 4, 2, 10};
  const Batch batch = random_batches(24)(0);
  Chain plain = made(7);
  const int first = samples.front();
  torch::mse_loss(plain(batch.x.narrow(0, first, 24 - first)), batch.y.narrow(0, first, 24 - first))
      .backward();
  for (const bool by_all : {true, false}) {
    Config config = config_of(1, 1);
    config.ddp = true;
    config.replica_samples = samples;
    init(config);
    const Ended ended;
    DistributedModel model{made(7)};
    Join join(model, {.divide_by_initial_world_size = by_all});
    ASSERT_TRUE(join.next(rdp_rank() != 0));
    const DataRows rows = data_rows(24);
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
    train_step(
        batch.x.narrow(0, rows.begin, rows.count), batch.y.narrow(0, rows.begin, rows.count));
    const double factor = by_all ? (24.0 - first) / 24 : 1;
    const auto wanted = plain->named_parameters();
    for (const auto& [name, parameter] : model.local_parameters()) {
      EXPECT_LE(relative_error(parameter.grad(), wanted[name].grad() * factor), 1e-5) << name;
    }
  }
}

// The loss that an optimizer decides by is that of the gradients that it has.
TEST(Join, LeavesOutLossesOfReplicasWithoutData) {
  for (const bool by_all : {true, false}) {
    init(uneven().front().config);
    const Ended ended;
    DistributedModel model{made(7)};
    DistributedOptimizer optimizer(torch::optim::SGD(model.parameters(), 0.1));
    auto train_step = tessera::step([&](torch::Tensor x) {
      auto loss = model(x).pow(2).mean() * 0 + (rdp_rank() == 0 ? 1e6 : 1.0 + rdp_rank());
      model.backward(loss);
      return loss;
    });
    Join join(model, {.divide_by_initial_world_size = by_all});
    ASSERT_TRUE(join.next(rdp_rank() != 0));
    const torch::Tensor loss =
        optimizer.step([&] { return train_step(batch_at(0, data_rank()).x).reduce_mean(); });
    double sum = 0;
    for (int replica = 1; replica < rdp_size(); ++replica) {
      sum += 1.0 + replica;
    }
    EXPECT_NEAR(loss.item<double>(), sum / (by_all ? rdp_size() : rdp_size() - 1), 1e-6);
  }
}

TensorMap buffers_of(const DistributedModel<Normed>& model) {
  TensorMap copies;
  for (const auto& [name, buffer] : model.local_buffers()) {
    copies[name] = buffer.detach().clone();
  }
  return copies;
}

/// Those of the replica's first rank, on every rank.
TensorMap of_replica(int replica, const TensorMap& own) {
  const std::vector<int> replicas = allgather(rdp_rank(), Group::kDP);
  const auto first = std::find(replicas.begin(), replicas.end(), replica) - replicas.begin();
  TensorMap theirs;
  for (const auto& [name, buffer] : own) {
    theirs[name] = allgather(buffer, Group::kDP).at(first);
  }
  return theirs;
}

void expect_buffers(const TensorMap& got, const TensorMap& wanted, const std::string& what) {
  for (const auto& [name, buffer] : wanted) {
    EXPECT_TRUE(got.at(name).equal(buffer)) << what << ", " << name;
  }
}

// A loop that ends before all are out of data.
TEST(Join, GoesOnFromBuffersOfAReplicaWithData) {
  for (const Uneven& entry : uneven()) {
    init(entry.config);
    const Ended ended;
    DistributedModel model{normed()};
    if (rdp_size() < 2) {
      continue;
    }
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
    const Batch batch = batch_at(0, data_rank());
    TensorMap wanted;
    {
      Join join(model);
      ASSERT_TRUE(join.next(rdp_rank() != 0));
      train_step(batch.x, batch.y);
      wanted = of_replica(1, buffers_of(model));
    }
    model.eval(); // forwards leave buffers alone
    for (int step = 0; step < 2; ++step) {
      train_step(batch.x, batch.y);
      expect_buffers(buffers_of(model), wanted, entry.text);
    }
    model.train();
    train_step(batch.x, batch.y); // that of the first one counts again
    wanted = of_replica(0, buffers_of(model));
    model.eval();
    train_step(batch.x, batch.y);
    expect_buffers(buffers_of(model), wanted, entry.text + ", afterwards");
  }
}

TEST(Join, SavesBuffersOfAReplicaWithData) {
  for (const Uneven& entry : uneven()) {
    const SharedFolder folder;
    init(entry.config);
    const Ended ended;
    DistributedModel model{normed()};
    DistributedOptimizer optimizer(torch::optim::SGD(model.parameters(), 0.1));
    if (rdp_size() < 2) {
      continue;
    }
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
    const Batch batch = batch_at(0, data_rank());
    Join join(model);
    ASSERT_TRUE(join.next(rdp_rank() != 0));
    train_step(batch.x, batch.y);
    optimizer.step();
    const TensorMap wanted = of_replica(1, buffers_of(model));
    tessera::save(model, optimizer, folder.path(), "inside");
    for (const auto& [name, buffer] : model.local_buffers()) {
      const at::NoGradGuard no_grad;
      torch::Tensor(buffer).zero_();
    }
    ASSERT_TRUE(tessera::load(model, optimizer, folder.path()));
    expect_buffers(buffers_of(model), wanted, entry.text);
  }
}

TEST(Join, SaysWhatDoesNotGoTogether) {
  init(uneven().front().config);
  const Ended ended;
  DistributedModel model{normed()};
  {
    Join join(model, {.throw_on_early_termination = true});
    EXPECT_TRUE(join.next(true));
    EXPECT_THAT(
        error_of<UserError>([&] { join.next(rank() != 0); }),
        HasSubstr("1 of " + std::to_string(dp_size()) + " replicas are out of data"));
  }
  {
    Join join(model);
    EXPECT_TRUE(join.next(rank() != 0));
    EXPECT_THAT(
        error_of<UserError>([&] { join.next(true); }), HasSubstr("rank 0 has a batch again"));
  }
  shutdown();
  Config pipeline = placed(2, 1, {{"chain.d", 1}});
  pipeline.ddp = world_size() > 2;
  init(pipeline);
  DistributedModel other{normed()};
  Join join(other);
  EXPECT_THAT(
      error_of<UserError>([&] { join.next(pp_rank() == 0); }), HasSubstr("of the same MP_GROUP"));
}

} // namespace
} // namespace tessera::testing
