// Between the making of a model and its first step the script sees and changes a whole model: what
// it loads, reads, edits and copies then is the model's, as in one process.
#include "tests/mpi/step_edges/support.h"
#include "tests/support/shared_folder.h"

namespace tessera::testing {
namespace {

constexpr int kPrecisions = 2; // f32, bf16 with f32 masters

Config config_at(int pp, int precision) {
  Config config = config_of(pp, 2);
  config.bf16 = precision == 1;
  return config;
}

DistributedOptimizer momentum(const std::vector<torch::Tensor>& parameters) {
  return DistributedOptimizer(
      torch::optim::SGD(parameters, torch::optim::SGDOptions(0.05).momentum(0.9)));
}

template <typename Model>
void train(Model& model, DistributedOptimizer& optimizer, int first, int last) {
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(squared(model(x), y)); });
  for (int step = first; step < last; ++step) {
    const Batch mine = mine_of(random_batches(16)(step));
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
}

/// The parameters after two steps, a checkpoint, `edit`, and two more steps; with `resumed` these
/// are another program's, which has other values before it loads.
template <typename Edit>
TensorMap trained(const Config& config, bool resumed, const Edit& edit) {
  const SharedFolder folder;
  {
    init(config);
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{Chain()};
    DistributedOptimizer optimizer = momentum(model.parameters());
    train(model, optimizer, 0, 2);
    save(model, optimizer, folder.path(), "two");
    if (!resumed) {
      edit(model, optimizer);
      train(model, optimizer, 2, 4);
      return model.state_dict();
    }
  }
  init(config);
  const Ended ended;
  torch::manual_seed(8);
  DistributedModel model{Chain()};
  DistributedOptimizer optimizer = momentum(model.parameters());
  EXPECT_TRUE(load(model, optimizer, folder.path()).has_value());
  edit(model, optimizer);
  train(model, optimizer, 2, 4);
  return model.state_dict();
}

template <typename Edit>
void expect_resumes_alike(const char* what, const Edit& edit) {
  for (const int pp : pipelines()) {
    for (int precision = 0; precision < kPrecisions; ++precision) {
      SCOPED_TRACE(str(what, ", ", text_of(pp, 2), precision == 1 ? ", bf16" : ""));
      const Config config = config_at(pp, precision);
      const TensorMap wanted = trained(config, false, edit);
      const TensorMap got = trained(config, true, edit);
      ASSERT_EQ(got.size(), wanted.size());
      for (const auto& [name, tensor] : wanted) {
        EXPECT_TRUE(got.at(name).equal(tensor)) << name;
      }
    }
  }
}

TEST(BeforeTheFirstStep, WhatIsLoadedGoesOn) {
  expect_resumes_alike("nothing is edited", [](auto& /*model*/, auto& /*optimizer*/) {});
}

TEST(BeforeTheFirstStep, ALearningRateThatIsSetBehindTheLoadCounts) {
  expect_resumes_alike("learning rate", [](auto& /*model*/, auto& optimizer) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(0.2);
    }
  });
}

TEST(BeforeTheFirstStep, ValuesThatAreEditedBehindTheLoadCount) {
  expect_resumes_alike("values", [](auto& model, auto& /*optimizer*/) {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, parameter] :
         model.partitioned() ? model.local_parameters() : NamedTensors()) {
      if (name.starts_with("last.")) {
        parameter.detach().mul_(0.25);
      }
    }
    if (!model.partitioned()) {
      for (const auto& parameter : model.net()->last->parameters()) {
        parameter.detach().mul_(0.25);
      }
    }
  });
}

TEST(BeforeTheFirstStep, WhatIsLoadedIsRead) {
  const SharedFolder folder;
  for (const int pp : pipelines()) {
    init(config_of(pp, 2));
    const Ended ended;
    torch::manual_seed(7);
    double wanted = 0;
    {
      DistributedModel model{Chain()};
      DistributedOptimizer optimizer = momentum(model.parameters());
      train(model, optimizer, 0, 2);
      wanted = model.state_dict().at("first.a.weight").sum().item<double>();
      save(model, folder.path(), str("pp", pp));
    }
    torch::manual_seed(8);
    DistributedModel model{Chain()};
    const bool whole = !model.partitioned();
    load(model, folder.path(), {.tag = str("pp", pp)});
    if (whole) {
      EXPECT_EQ(model.net()->first->a->weight.sum().item<double>(), wanted);
    }
  }
}

// A target net, an average of weights: also where ranks were seeded differently.
TEST(BeforeTheFirstStep, ACopyIsOfTheModelThatIsTrained) {
  for (const int pp : pipelines()) {
    for (const bool seeded : {true, false}) {
      SCOPED_TRACE(str(text_of(pp, 2), seeded ? "" : ", ranks with seeds of their own"));
      init(config_of(pp, 2));
      const Ended ended;
      torch::manual_seed(seeded ? 7 : 7 + rank());
      DistributedModel model{Chain()};
      const Chain plain;
      Chain twin;
      model.copy_to(plain);
      DistributedModel other{twin};
      model.copy_to(other);
      const auto x = torch::ones({4, kWidth});
      torch::Tensor before;
      {
        const torch::NoGradGuard no_grad;
        // In microbatches: products of other numbers of rows may be rounded in another way.
        std::vector<torch::Tensor> parts;
        for (const auto& rows : x.chunk(2)) {
          parts.push_back(plain->last(plain->third(plain->second(plain->first(rows)))));
        }
        before = torch::cat(parts);
        auto forward =
            tessera::step([&](torch::Tensor rows) { return std::tuple(model(rows), other(rows)); });
        const auto [of_model, of_other] = forward(x);
        EXPECT_TRUE(of_model.concat().equal(before));
        EXPECT_TRUE(of_other.concat().equal(before));
      }
    }
  }
}

} // namespace
} // namespace tessera::testing
