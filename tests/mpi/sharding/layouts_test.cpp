// A model that is divided over stages or tensor-parallel ranks, and whose parameters the replicas
// of each keep in parts, trains the numbers of one process.
#include "tests/mpi/sharding/layouts.h"

#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

void expect_alone(const Layout& layout, const Kind& kind, const std::string& what) {
  expect_alone(layout_config(layout, kind.microbatches), layout, kind, what);
}

TEST(Layouts, TrainTheNumbersOfOneProcess) {
  for (const Layout& layout : sharded_layouts()) {
    for (const int microbatches : {1, 2, 4}) {
      if (16 % slices_of(layout, microbatches) == 0) {
        expect_alone(layout, {.microbatches = microbatches}, "training");
      }
    }
  }
}

// Replicas, and microbatches of one, read and train different modules in one step.
TEST(Layouts, TrainTheNumbersOfOneProcessWhereSlicesBranch) {
  for (const Layout& layout : sharded_layouts()) {
    for (const int microbatches : {1, 2}) {
      expect_alone(layout, {.microbatches = microbatches, .mixed = true}, "branching");
    }
  }
}

TEST(Layouts, ClipTheNormOfAllGradients) {
  for (const Layout& layout : sharded_layouts()) {
    expect_alone(layout, {.clip = 0.3}, "clipped");
    Config some = layout_config(layout, 2); // small parameters stay whole
    some.sdp_param_persistence_threshold = kWidth * kWidth;
    expect_alone(some, layout, {.clip = 0.3}, "clipped, small ones whole");
  }
}

TEST(Layouts, AddUpPasses) {
  for (const Layout& layout : sharded_layouts()) {
    expect_alone(layout, {.passes = 2}, "passes");
  }
}

TEST(Layouts, RecomputeActivations) {
  for (const Layout& layout : sharded_layouts()) {
    expect_alone(layout, {.recompute = true}, "recomputed");
  }
}

// Bounds of memory change when things travel, never what is computed.
TEST(Layouts, TakeKeysOfMemory) {
  for (const Layout& layout : sharded_layouts()) {
    Config config = layout_config(layout, 2);
    config.sdp_max_live_parameters = 1;
    config.sdp_reduce_bucket_size = 100;
    expect_alone(config, layout, {.clip = 0.3}, "small buckets");
  }
}

/// Each rank keeps 1 / d of its stage's part of the model, of gradients and of the optimizer's
/// state.
TEST(Layouts, BytesOfARank) {
  for (const Layout& layout : sharded_layouts()) {
    std::int64_t unsharded = 0;
    for (const int degree : {1, layout.degree}) {
      init(layout_config({layout.pp, layout.tp, degree}, 2));
      const Ended ended;
      torch::manual_seed(7);
      DistributedModel model{Layered()};
      DistributedOptimizer optimizer(adamw(model.parameters()));
      auto train_step = tessera::step(
          [&](torch::Tensor x, torch::Tensor y) { model.backward(word_loss(model(x), y)); });
      for (int i = 0; i < 2; ++i) { // both branches
        const Batch mine = part_of(word_batch(i), data_size(), data_rank());
        train_step(mine.x, mine.y);
      }
      optimizer.step();
      std::int64_t bytes = 0;
      std::int64_t count = 0;
      for (const auto& [name, tensor] : train::ModelAccess::core(model)->local_parameters()) {
        ++count;
        at::Tensor kept = tensor;
        if (degree > 1) {
          kept = train::ModelAccess::core(model)->shards()->updated_part(tensor);
          EXPECT_FALSE(kept.is_same(tensor)) << name;
          EXPECT_EQ(tensor.data_ptr(), nullptr) << name;
        }
        bytes += static_cast<std::int64_t>(kept.nbytes());
        bytes += kept.grad().defined() ? static_cast<std::int64_t>(kept.grad().nbytes()) : 0;
      }
      for (const auto& [name, fields] : optimizer.local_state_dict().parameters) {
        for (const auto& [field, value] : fields) {
          bytes += value.isTensor() ? static_cast<std::int64_t>(value.toTensor().nbytes()) : 0;
        }
      }
      ASSERT_GT(count, 0);
      if (degree == 1) {
        unsharded = bytes;
      } else {
        EXPECT_GE(bytes * degree, unsharded) << text_of(layout);
        // Parameter, gradient and two moments, each rounded up to whole elements.
        EXPECT_LE(bytes * degree, unsharded + count * 4 * 4 * (degree - 1)) << text_of(layout);
      }
    }
  }
}

struct Training {
  Training() : model(made()), optimizer(adamw(model.parameters())) {}
  static Layered made() {
    torch::manual_seed(7);
    return Layered();
  }
  void step(int number) {
    auto train_step = tessera::step(
        [&](torch::Tensor x, torch::Tensor y) { model.backward(word_loss(model(x), y)); });
    const Batch mine = part_of(word_batch(number), data_size(), data_rank());
    optimizer.zero_grad(/*set_to_none=*/true); // a checkpoint holds no zeros
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  DistributedModel<Layered> model;
  DistributedOptimizer optimizer;
};

/// Saved under one layout, gone on with under others.
void expect_resumed(const Layout& from, const std::vector<Layout>& others, bool full) {
  const SharedFolder folder;
  TensorMap uninterrupted;
  {
    init(layout_config(from, 1));
    const Ended ended;
    Training run;
    run.step(0);
    run.step(1);
    save(run.model, run.optimizer, folder.path(), "two", {.full = full});
    run.step(2);
    uninterrupted = run.model.state_dict();
  }
  for (const Layout& to : others) {
    init(layout_config(to, 1));
    const Ended ended;
    Training run;
    ASSERT_TRUE(load(run.model, run.optimizer, folder.path()));
    run.step(2);
    expect_same(
        run.model.state_dict(),
        uninterrupted,
        str("from ", text_of(from), " to ", text_of(to), full ? ", full" : ""),
        1e-4);
  }
}

TEST(Layouts, CheckpointsFitEachOther) {
  std::vector<Layout> all = sharded_layouts();
  all.push_back({2, 1, 1});
  all.push_back({1, 1, world_size()});
  expect_resumed(all.front(), all, false);
  for (std::size_t i = 1; i < all.size(); ++i) {
    expect_resumed(all[i], {all[i], all.front()}, false);
  }
  expect_resumed(all.front(), {all.back()}, true);
  expect_resumed(all.back(), {all.front()}, true);
}

TEST(Layouts, DictionariesFitEachOther) {
  const TwoSteps before = two_steps<Training>(layout_config({1, 1, 2}, 1));
  for (const Layout& layout : sharded_layouts()) {
    init(layout_config(layout, 1));
    const Ended ended;
    Training run;
    run.model.load_state_dict(before.model);
    run.optimizer.load_state_dict(before.optimizer);
    run.step(1);
    expect_same(run.model.state_dict(), before.uninterrupted, text_of(layout), 1e-4);
  }
}

/// Built without memory where `delayed`.
TensorMap built(const Layout& layout, bool delayed) {
  init(layout_config(layout, 2));
  const Ended ended;
  torch::manual_seed(7);
  const auto make = [delayed] {
    const delay_param_initialization scope(delayed);
    return Layered();
  };
  DistributedModel model(make());
  DistributedOptimizer optimizer(adamw(model.parameters()));
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(word_loss(model(x), y)); });
  const Batch mine = part_of(word_batch(0), data_size(), data_rank());
  train_step(mine.x, mine.y);
  optimizer.step();
  return model.state_dict();
}

TEST(Layouts, DelayedParametersAreDividedAsTheyAreMade) {
  for (const Layout& layout : sharded_layouts()) {
    const TensorMap wanted = built({layout.pp, layout.tp, 1}, true);
    expect_same(built(layout, true), wanted, text_of(layout), 1e-5);
  }
}

} // namespace
} // namespace tessera::testing
