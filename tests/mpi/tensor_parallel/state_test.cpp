// State dictionaries, optimizer state and checkpoints: what a single process
// has, whatever the ranks hold.
#include <filesystem>

#include "tessera/deferred_init/delayed_init.h"

#include "tests/mpi/tensor_parallel/support.h"

namespace tessera::testing {
namespace {

/// pp x tp of this world.
std::vector<std::pair<int, int>> layouts() {
  return world_size() == 2 ? std::vector<std::pair<int, int>>{{1, 2}, {2, 1}, {1, 1}}
                           : std::vector<std::pair<int, int>>{{2, 2}, {1, 4}, {1, 2}, {4, 1}};
}

std::string text_of(const std::pair<int, int>& layout) {
  return str("pp ", layout.first, ", tp ", layout.second);
}

TEST(TensorParallelState, AnyStateGoesInAndComesOut) {
  torch::manual_seed(21);
  const TensorMap wanted = plain_state(Mixed());
  for (const auto& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    init(tp_config(layout.first, layout.second));
    const Ended ended;
    torch::manual_seed(5 + rank());
    DistributedModel model{Mixed()};
    model.load_state_dict(wanted);
    const Batch mine = mine_of(word_batch(0));
    auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
    const torch::NoGradGuard no_grad;
    forward(mine.x); // partitioned now
    expect_same_bits(model.state_dict(), wanted);
    const TensorMap first = model.state_dict(/*gather_to_rank0=*/true);
    EXPECT_EQ(first.size(), mp_rank() == 0 ? wanted.size() : 0U);
    // A rank's own part goes in as well.
    TensorMap own;
    for (const auto& [name, tensor] : model.local_state_dict()) {
      own.emplace(name, tensor + 1);
    }
    model.load_state_dict(own);
    for (const auto& [name, tensor] : model.state_dict()) {
      EXPECT_TRUE(tensor.equal(wanted.at(name) + 1)) << name;
    }
    // Nothing is loaded when anything does not fit.
    TensorMap other = wanted;
    other["gated.down"] = torch::zeros({3, 3});
    other["unknown"] = torch::zeros({1});
    const std::string error = error_of<CheckpointError>([&] { model.load_state_dict(other); });
    EXPECT_NE(error.find("'gated.down' has shape [3, 3]"), std::string::npos) << error;
    EXPECT_NE(error.find("'unknown' is not in the model"), std::string::npos);
  }
}

int of_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// Trains, then gives model and optimizer state and the checkpoint's hash.
struct Saving {
  TensorMap model;
  std::string hash;
};

Saving run(
    const std::pair<int, int>& layout,
    const std::string& folder,
    int steps,
    bool resume,
    bool full) {
  init(tp_config(layout.first, layout.second));
  const Ended ended;
  torch::manual_seed(dp_rank() == 0 ? 7 : 8);
  DistributedModel model{Mixed()};
  DistributedOptimizer optimizer = adam(model.parameters());
  auto train_step = word_step(model);
  if (resume) {
    EXPECT_TRUE(load(model, optimizer, folder).has_value());
    auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
    const torch::NoGradGuard no_grad;
    forward(mine_of(word_batch(0)).x);
  }
  for (int i = 0; i < steps; ++i) {
    const Batch mine = mine_of(word_batch(i));
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  SaveOptions options;
  options.full = full;
  Saving result;
  result.hash = save(model, optimizer, folder + (resume ? "/again" : ""), "a", options).state_hash;
  result.model = model.state_dict();
  return result;
}

TEST(TensorParallelState, CheckpointsFitEveryLayout) {
  for (const bool full : {false, true}) {
    const std::string folder = str("tp_state_", world_size(), full ? "_full" : "_parts");
    const auto clean = [&] {
      MPI_Barrier(MPI_COMM_WORLD);
      if (of_world() == 0) {
        std::filesystem::remove_all(folder);
      }
      MPI_Barrier(MPI_COMM_WORLD);
    };
    clean();
    const Saving trained = run(layouts().front(), folder, 3, false, full);
    for (const auto& layout : layouts()) {
      SCOPED_TRACE(text_of(layout));
      const Saving loaded = run(layout, folder, 0, true, full);
      expect_same_bits(loaded.model, trained.model);
      EXPECT_EQ(loaded.hash, trained.hash); // of the optimizer's state as well
      MPI_Barrier(MPI_COMM_WORLD);
      if (of_world() == 0) {
        std::filesystem::remove_all(folder + "/again");
      }
    }
    clean();
  }
}

struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(std::int64_t width)
      : factors(register_parameter("factors", torch::randn({width}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x * factors;
  }
  torch::Tensor factors;
};
TESSERA_MODULE(Scale);

/// The first rank of the TP_GROUP holds the whole parameter, the others nothing.
struct DistributedScaleImpl : nn::DistributedModule {
  explicit DistributedScaleImpl(std::int64_t width) {
    const auto create = nn::parameter_creation_scope(*this);
    if (parallel().rank() == 0) {
      factors = create.initialize_shard("factors", nn::whole({width}));
    } else {
      create.skip({width});
    }
  }
  torch::Tensor forward(const torch::Tensor& own) {
    const auto x = nn::fused_allgather_for_tp(own, 0);
    return nn::reduce_scatter_for_tp(factors.defined() ? x * factors : x * 0, 0);
  }
  torch::Tensor factors;
};
TESSERA_MODULE(DistributedScale);

TESSERA_TP_REGISTER(Scale, DistributedScale).init([](const ScaleImpl& scale) {
  return std::make_tuple(scale.factors.size(0));
});

struct ScaledImpl : torch::nn::Module {
  ScaledImpl() {
    words = register_module("words", nn::Embedding(kWords, kWidth));
    {
      const tensor_parallelism marked;
      scale = register_module("scale", Scale(kWidth));
    }
    last = register_module("last", nn::Linear(kWidth, kWords));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return last(scale(words(ids)));
  }
  nn::Embedding words{nullptr};
  Scale scale{nullptr};
  nn::Linear last{nullptr};
};
TESSERA_MODULE(Scaled);

TEST(TensorParallelState, ARankMayHoldNothingOfAModule) {
  const auto make = [] { return Scaled(); };
  for (const auto& [pp, tp] : layouts()) {
    if (pp > 2) {
      continue; // more pipeline ranks than modules
    }
    const int slices = 2 * world_size() / pp;
    const auto wanted = train_plain(make, word_batch, 3, slices, word_loss);
    Config config = tp_config(pp, tp);
    if (pp == 2) { // the module on the second pipeline rank
      config.auto_partition = false;
      config.default_partition = 0;
      config.partition = {{"scale", 1}};
    }
    expect_equal(
        train_distributed(config, make, word_batch, 3, word_loss), wanted, text_of({pp, tp}));
  }
}

TEST(TensorParallelState, ADividedParameterMeetsTheWholeBatch) {
  init(tp_config(1, world_size()));
  const Ended ended;
  struct Divided : nn::DistributedModule {
    Divided() {
      const auto create = nn::parameter_creation_scope(*this, {.scaled_batch = false});
      create.initialize_whole("bias", {4});
      create.initialize_with_input_partition("weight", {4, 8});
    }
  };
  const std::string error = error_of<ConfigError>([] { Divided(); });
  EXPECT_NE(error.find("parameter 'weight'"), std::string::npos) << error;
  EXPECT_NE(error.find("leave scaled_batch true"), std::string::npos) << error;
}

TEST(TensorParallelState, OptimizerStateGoesInAndComesOut) {
  state::OptimizerState whole;
  TensorMap parameters;
  {
    init(tp_config(1, world_size()));
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{Mixed()};
    DistributedOptimizer optimizer = adam(model.parameters());
    auto train_step = word_step(model);
    for (int i = 0; i < 2; ++i) {
      const Batch mine = mine_of(word_batch(i));
      optimizer.zero_grad();
      train_step(mine.x, mine.y);
      optimizer.step();
    }
    whole = optimizer.state_dict();
    parameters = model.state_dict();
    const auto own = optimizer.local_state_dict();
    EXPECT_TRUE(own.parameters.contains("gated.up"));
    optimizer.load_state_dict(own);
    const auto again = optimizer.state_dict();
    EXPECT_TRUE(again.parameters.at("gated.down")
                    .at("exp_avg")
                    .toTensor()
                    .equal(whole.parameters.at("gated.down").at("exp_avg").toTensor()));
  }
  // In a plain optimizer, by the plain model's names.
  Mixed plain;
  std::vector<torch::Tensor> list = plain->parameters();
  torch::optim::Adam optimizer(list, torch::optim::AdamOptions(0.5));
  NamedTensors names;
  for (const auto& item : plain->named_parameters()) {
    EXPECT_EQ(
        whole.parameters.at(item.key()).at("exp_avg").toTensor().sizes(), item.value().sizes())
        << item.key();
    names.emplace_back(item.key(), item.value());
  }
  state::restore(optimizer, whole, names);
  EXPECT_EQ(
      static_cast<torch::optim::AdamOptions&>(optimizer.param_groups()[0].options()).lr(), 0.01);
  EXPECT_EQ(parameters.size(), names.size());
}

/// Buffers that each rank fills from its own samples.
struct CountedImpl : torch::nn::Module {
  CountedImpl() {
    const tensor_parallelism marked;
    linear = register_module("linear", nn::Linear(kWidth, kWidth));
    for (const char* name : {"first", "second", "third"}) {
      sums.push_back(register_buffer(name, torch::zeros({1})));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& sum : sums) {
      sum.add_(x.square().mean());
    }
    return linear(x);
  }
  nn::Linear linear{nullptr};
  std::vector<torch::Tensor> sums;
};
TESSERA_MODULE(Counted);

// A resumed training begins as the next step would.
TEST(TensorParallelState, BuffersAreThoseOfTheFirstRank) {
  init(tp_config(1, 2));
  const Ended ended;
  DistributedModel model{Counted()};
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  torch::manual_seed(20 + tp_rank());
  forward(torch::randn({4, kWidth}));
  const TensorMap state = model.state_dict();
  for (const auto& [name, tensor] : model.local_buffers()) {
    const auto of_ranks = allgather(tensor, Group::kTP);
    EXPECT_FALSE(of_ranks.at(0).equal(of_ranks.at(1))) << name;
    EXPECT_TRUE(state.at(name).equal(of_ranks.at(0))) << name;
  }
}

TEST(TensorParallelState, DelayedModels) {
  for (const auto& layout : layouts()) {
    SCOPED_TRACE(text_of(layout));
    const auto make = [] {
      torch::manual_seed(17);
      const tracer::DelayedInitScope delayed;
      return Mixed();
    };
    Mixed plain = make();
    tracer::materialize(*plain);
    init(tp_config(layout.first, layout.second));
    const Ended ended;
    DistributedModel model{make()};
    const Batch mine = mine_of(word_batch(0));
    auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
    const torch::NoGradGuard no_grad;
    forward(mine.x);
    expect_same_bits(model.state_dict(), plain_state(plain));
  }
}

} // namespace
} // namespace tessera::testing
