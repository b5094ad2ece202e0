// States that were saved shared out are loaded whole, and the other way round.
#include "tests/mpi/sharded_state/support.h"
#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

/// A run that is saved after two updates and makes a third: its parameters and saved hash.
struct Reference {
  TensorMap end;
  std::string hash;
};

Reference save_and_go_on(
    const Strategy& strategy,
    bool sharded,
    const How& how,
    const std::string& folder,
    const std::string& tag,
    bool full) {
  init(config_of(strategy, sharded));
  const Ended ended;
  Training run(how);
  run.update(0);
  run.update(1);
  SaveOptions options;
  options.full = full;
  Reference result;
  result.hash = tessera::save(run.model, run.optimizer, folder, tag, options).state_hash;
  run.update(2);
  result.end = run.model.state_dict();
  return result;
}

TensorMap load_and_go_on(
    const Strategy& strategy,
    bool sharded,
    const How& how,
    const std::string& folder,
    const std::string& tag) {
  init(config_of(strategy, sharded));
  const Ended ended;
  Training run(how);
  LoadOptions options;
  options.tag = tag;
  EXPECT_TRUE(tessera::load(run.model, run.optimizer, folder, options));
  run.update(2);
  return run.model.state_dict();
}

void expect_resumes(const How& how) {
  const SharedFolder folder;
  for (const bool full : {false, true}) {
    for (const Strategy& strategy : strategies()) {
      const std::string tag =
          str(full ? "full" : "partial",
              "_",
              strategy.pp,
              strategy.tp,
              strategy.prescaled,
              strategy.fast,
              strategy.reproducible);
      const std::string what = strategy.text() + ", " + how.text() + ", " + tag;
      const Reference shared = save_and_go_on(strategy, true, how, folder.path(), tag, full);
      // To the bit where sums have one order.
      const TensorMap again = load_and_go_on(strategy, true, how, folder.path(), tag);
      const TensorMap whole = load_and_go_on(strategy, false, how, folder.path(), tag);
      if (strategy.one_order()) {
        expect_same_bits(again, shared.end, what + ", resumed");
        expect_same_bits(whole, shared.end, what + ", resumed without sharding");
      } else {
        expect_state(again, shared.end, what + ", resumed", 1e-2);
        expect_state(whole, shared.end, what + ", resumed without sharding", 1e-2);
      }
      if (how.type == at::kFloat) {
        for (const Strategy& other : strategies()) {
          expect_state(
              load_and_go_on(other, true, how, folder.path(), tag),
              shared.end,
              what + " as " + other.text(),
              1e-4);
        }
      }
    }
  }
}

TEST(ShardedCheckpoints, AreResumedUnderEveryLayout) {
  expect_resumes({.kind = Kind::kAdamW});
}

TEST(ShardedCheckpoints, OfSixteenBitsHoldTheMasters) {
  expect_resumes({.kind = Kind::kMomentum, .type = at::kBFloat16});
}

TEST(ShardedCheckpoints, HoldWhatOthersHold) {
  const SharedFolder folder;
  const Strategy strategy;
  const How how;
  const Reference whole = save_and_go_on(strategy, false, how, folder.path(), "whole", false);
  const Reference shared = save_and_go_on(strategy, true, how, folder.path(), "shared", false);
  EXPECT_EQ(shared.hash, whole.hash); // of all values and all state
  expect_same_bits(
      load_and_go_on(strategy, true, how, folder.path(), "whole"), whole.end, "shared out now");
}

TEST(ShardedCheckpoints, WrittenInTheBackgroundHoldTheStateOfTheirBeginning) {
  const SharedFolder folder;
  const std::string path = folder.path();
  for (const Strategy& strategy : strategies()) {
    for (const bool full : {false, true}) {
      init(config_of(strategy, true));
      const Ended ended;
      Training run;
      run.update(0);
      run.update(1);
      SaveOptions options;
      options.full = full;
      const std::string what = str(full ? "full, " : "partial, ", strategy.text());
      const std::string now =
          tessera::save(run.model, run.optimizer, path, "now", options).state_hash;
      BackgroundSave pending =
          tessera::save_in_background(run.model, run.optimizer, path, "later", options);
      EXPECT_THAT(
          error_of<CheckpointError>(
              [&] { tessera::save(run.model, run.optimizer, path, "other", options); }),
          ::testing::HasSubstr("call its finish() first"))
          << what;
      run.update(2); // writes over what was saved
      LoadOptions newest;
      EXPECT_EQ(tessera::load(run.model, path, newest)->path, path + "/now") << what;
      EXPECT_EQ(pending.finish().state_hash, now) << what;
      EXPECT_EQ(tessera::load(run.model, path, newest)->path, path + "/later") << what;
      EXPECT_TRUE(pending.written());
      // One that is given up leaves the others as they were.
      { tessera::save_in_background(run.model, run.optimizer, path, "never", options); }
      { tessera::save_in_background(run.model, run.optimizer, path, "never", options); }
      EXPECT_EQ(tessera::load(run.model, path, newest)->path, path + "/later") << what;
    }
  }
}

// Ranks of a TP_GROUP divide among themselves the writing of what all of them hold, and with
// shard_optimizer_state each has another part of that.
TEST(ShardedCheckpoints, OfATpGroupWithoutDistributedModulesHoldEveryParameter) {
  const SharedFolder folder;
  for (const Strategy& strategy : strategies()) {
    if (strategy.tp == 1) {
      continue;
    }
    for (const bool full : {false, true}) {
      const std::string tag = str("tp_", strategy.pp, strategy.prescaled, full);
      Chain chain = made(7);
      set_tensor_parallelism(chain->b, false);
      set_tensor_parallelism(chain->c, false);
      TensorMap wanted;
      {
        init(config_of(strategy, true));
        const Ended ended;
        const DistributedModel<Chain> model(chain);
        DistributedOptimizer optimizer(make_optimizer(Kind::kAdamW, model.parameters()));
        const Batch mine = part_of(batch_at(0), data_size(), data_rank());
        step_of(model)(mine.x, mine.y);
        optimizer.step();
        SaveOptions options;
        options.full = full;
        tessera::save(model, optimizer, folder.path(), tag, options);
        wanted = model.state_dict();
      }
      for (const bool sharded : {false, true}) {
        init(config_of(Strategy{}, sharded));
        const Ended ended;
        Training run;
        LoadOptions options;
        options.tag = tag;
        EXPECT_TRUE(tessera::load(run.model, run.optimizer, folder.path(), options));
        expect_same_bits(run.model.state_dict(), wanted, strategy.text() + ", " + tag);
      }
    }
  }
}

void expect_equal_states(
    const state::OptimizerState& got,
    const state::OptimizerState& wanted,
    const std::string& what) {
  ASSERT_EQ(got.parameters.size(), wanted.parameters.size()) << what;
  for (const auto& [name, fields] : wanted.parameters) {
    ASSERT_TRUE(got.parameters.contains(name)) << what << ", " << name;
    for (const auto& [field, value] : fields) {
      const c10::IValue& other = got.parameters.at(name).at(field);
      if (value.isTensor()) {
        EXPECT_LE(relative_error(other.toTensor(), value.toTensor()), 1e-5)
            << what << ", " << name << ", " << field;
      } else {
        EXPECT_EQ(other, value) << what << ", " << name << ", " << field;
      }
    }
  }
  for (std::size_t i = 0; i < wanted.groups.size(); ++i) {
    auto names = got.groups.at(i).parameters;
    auto others = wanted.groups[i].parameters;
    std::sort(names.begin(), names.end());
    std::sort(others.begin(), others.end());
    EXPECT_EQ(names, others) << what;
  }
}

TEST(ShardedCheckpoints, StateDictIsWhole) {
  for (const Strategy& strategy : strategies()) {
    state::OptimizerState wanted;
    state::OptimizerState local;
    for (const bool sharded : {false, true}) {
      init(config_of(strategy, sharded));
      const Ended ended;
      Training run;
      run.update(0);
      run.update(1);
      if (!sharded) {
        wanted = run.optimizer.state_dict();
        local = run.optimizer.local_state_dict();
        for (auto& [name, fields] : local.parameters) {
          for (auto& [field, value] : fields) {
            value = value.isTensor() ? c10::IValue(value.toTensor().clone()) : value;
          }
        }
        continue;
      }
      expect_equal_states(run.optimizer.state_dict(), wanted, strategy.text());
      expect_equal_states(run.optimizer.local_state_dict(), local, strategy.text());
      // A whole one, and this rank's own, are taken back.
      for (const bool whole : {true, false}) {
        run.optimizer.load_state_dict(
            whole ? run.optimizer.state_dict() : run.optimizer.local_state_dict());
        expect_equal_states(run.optimizer.state_dict(), wanted, strategy.text());
      }
    }
  }
}

} // namespace
} // namespace tessera::testing
