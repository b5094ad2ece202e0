// What each rank keeps, and what travels.
#include "tessera/context/context.h"
#include "tessera/optim/optimizer_access.h"

#include "tests/mpi/sharded_state/support.h"

namespace tessera::testing {
namespace {

std::int64_t bytes_of(const state::OptimizerState& state) {
  std::int64_t bytes = 0;
  for (const auto& [name, fields] : state.parameters) {
    for (const auto& [field, value] : fields) {
      if (value.isTensor()) {
        bytes += static_cast<std::int64_t>(value.toTensor().nbytes());
      }
    }
  }
  return bytes;
}

TEST(SharesOfState, AreBalancedAndEachIsKeptOnce) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    init(config_of(Strategy(), true));
    const Ended ended;
    Training run({.kind = Kind::kAdamW, .type = type});
    run.update(0);
    std::int64_t whole = 0;
    std::int64_t largest = 0;
    for (const auto& [name, tensor] : run.model.local_parameters()) {
      whole += tensor.numel();
      largest = std::max(largest, tensor.numel());
    }
    const auto own = run.optimizer.local_state_dict(false);
    constexpr std::int64_t kTwoMoments = 2 * sizeof(float);
    EXPECT_LE(bytes_of(own), kTwoMoments * (whole / dp_size() + largest));
    std::vector<std::string> names;
    for (const auto& [name, fields] : own.parameters) {
      names.push_back(name);
    }
    std::multiset<std::string> all;
    for (const auto& theirs : allgather(names, Group::kDP)) {
      all.insert(theirs.begin(), theirs.end());
    }
    std::multiset<std::string> once;
    for (const auto& [name, tensor] : run.model.local_parameters()) {
      once.insert(name);
    }
    EXPECT_EQ(all, once);
    // A parameter's f32 master is where its state is, and so is its gradient.
    for (const auto& [name, tensor] : run.model.local_parameters()) {
      const bool mine = own.parameters.contains(name);
      EXPECT_EQ(tensor.grad().defined(), mine) << name;
      EXPECT_EQ(
          optim::OptimizerAccess::updated_tensor(run.optimizer, tensor).is_same(tensor),
          type == at::kFloat || !mine)
          << name;
    }
    EXPECT_EQ(bytes_of(run.optimizer.local_state_dict()), kTwoMoments * whole);
  }
}

struct OneImpl : torch::nn::Module {
  OneImpl() {
    only =
        register_module("only", nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return only(x);
  }
  nn::Linear only{nullptr};
};
TESSERA_MODULE(One);

TEST(SharesOfState, ARankMayHaveNone) {
  for (const bool adam : {false, true}) {
    const auto make = [] { return One(); };
    TensorMap wanted;
    for (const bool sharded : {false, true}) {
      init(config_of(Strategy(), sharded));
      const Ended ended;
      torch::manual_seed(7);
      DistributedModel model{make()};
      DistributedOptimizer optimizer(
          make_optimizer(adam ? Kind::kAdamW : Kind::kMomentum, model.parameters()));
      for (int step = 0; step < 3; ++step) {
        const Batch mine = part_of(batch_at(step), data_size(), data_rank());
        optimizer.zero_grad();
        tessera::step([&](torch::Tensor x, torch::Tensor y) {
          model.backward(torch::mse_loss(model(x), y));
        })(mine.x, mine.y);
        optimizer.clip_grad_norm(0.1);
        optimizer.step();
      }
      if (sharded) {
        EXPECT_EQ(optimizer.local_state_dict(false).parameters.size(), dp_rank() == 0 ? 1U : 0U);
        expect_state(model.state_dict(), wanted, "a rank without state", 1e-6);
      } else {
        wanted = model.state_dict();
      }
    }
  }
}

// A gradient leaves every rank but its owner, and a value its owner for every other rank: together
// what an all-reduce moves.
TEST(SharesOfState, BytesFollowTheFormula) {
  init(config_of(Strategy(), true));
  const Ended ended;
  Training run;
  run.update(0);
  std::int64_t whole = 0;
  for (const auto& [name, tensor] : run.model.local_parameters()) {
    whole += tensor.numel() * static_cast<std::int64_t>(sizeof(float));
  }
  const std::int64_t mine = bytes_of(run.optimizer.local_state_dict(false)) / 2;
  comm::ProcessGroup& group = context().group(Group::kDP);
  for (int step = 1; step < 3; ++step) {
    const auto before = group.traffic().bytes.load();
    run.update(step);
    EXPECT_EQ(group.traffic().bytes.load() - before, whole - mine + (dp_size() - 1) * mine);
  }
}

TEST(SharesOfState, NothingChangesWithOneDataParallelRank) {
  Config config = config_of(Strategy{.pp = world_size() == 3 ? 1 : 2}, true);
  if (world_size() != 2) {
    return;
  }
  init(config);
  const Ended ended;
  Training run;
  run.update(0);
  EXPECT_EQ(
      run.optimizer.local_state_dict(false).parameters.size(), run.model.local_parameters().size());
}

} // namespace
} // namespace tessera::testing
