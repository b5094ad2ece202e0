// Replicas with different numbers of batches: the numbers of one process that adds up what there
// is.
#include "tessera/train/join.h"

#include "tests/mpi/optim/support.h"

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
