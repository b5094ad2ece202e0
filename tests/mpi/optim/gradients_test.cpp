// Gradients that a script makes outside of steps are averaged over the replicas
// before an optimizer uses them; its own changes in place are left alone.
#include <functional>
#include <map>

#include "tessera/context/context.h"

#include "tests/mpi/optim/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

DistributedOptimizer plain_sgd(const std::vector<torch::Tensor>& parameters) {
  return DistributedOptimizer(torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1)));
}

torch::Tensor loss_of(Chain chain, const Batch& batch) {
  return torch::mse_loss(chain(batch.x), batch.y);
}

/// The reference: SGD's update with the gradient of `loss`.
TensorMap updated(const std::function<torch::Tensor(Chain)>& loss) {
  Chain chain = made(7);
  torch::optim::SGD optimizer(chain->parameters(), torch::optim::SGDOptions(0.1));
  loss(chain).backward();
  optimizer.step();
  return state_of(chain);
}

torch::Tensor squares(const NamedTensors& parameters) {
  torch::Tensor sum = torch::zeros({});
  for (const auto& [name, tensor] : parameters) {
    sum = sum + 0.05 * tensor.pow(2).sum();
  }
  return sum;
}

NamedTensors named(const Chain& chain) {
  NamedTensors list;
  for (const auto& item : chain->named_parameters()) {
    list.emplace_back(item.key(), item.value());
  }
  return list;
}

void expect_equal_replicas(const DistributedModel<Chain>& model) {
  for (const auto& [name, tensor] : model.local_parameters()) {
    for (const torch::Tensor& other : allgather(tensor.detach(), Group::kDP)) {
      EXPECT_TRUE(other.equal(tensor.detach())) << name;
    }
  }
}

TEST(Gradients, OfABackwardWithoutAStep) {
  const TensorMap wanted = updated([](Chain chain) { return loss_of(chain, batch_of()); });
  init(config_of(Layout{1, 1}));
  const Ended ended;
  DistributedModel model{made(7)};
  auto optimizer = plain_sgd(model.parameters());
  const Batch mine = part_of(batch_of(), data_size(), data_rank());
  torch::mse_loss(model(mine.x), mine.y).backward();
  optimizer.step();
  expect_state(model.state_dict(), wanted, "backward alone");
  expect_equal_replicas(model);
}

// A penalty on the parameters that each rank owns, added after the step.
TEST(Gradients, OfAPenaltyBesideAStep) {
  const TensorMap wanted =
      updated([](Chain chain) { return loss_of(chain, batch_of()) + squares(named(chain)); });
  for (const Layout& layout : layouts()) {
    if (layout.tp > 1) {
      continue;
    }
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{made(7)};
    auto optimizer = plain_sgd(model.parameters());
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    step_of(model)(mine.x, mine.y);
    squares(model.local_parameters()).backward();
    optimizer.step();
    expect_state(model.state_dict(), wanted, layout.text());
    expect_equal_replicas(model);
  }
}

// One replica alone: the others get their share of what it added.
TEST(Gradients, AddedByOneReplica) {
  init(config_of(Layout{1, 1}));
  const Ended ended;
  DistributedModel model{made(7)};
  const TensorMap before = state_of(model.net());
  auto optimizer = plain_sgd(model.parameters());
  if (dp_rank() == dp_size() - 1) {
    model.net()->a->weight.mutable_grad() = torch::ones({kWidth, kWidth}); // by hand
    model.net()->d->bias.sum().backward();
  }
  optimizer.step();
  const double share = 0.1 / dp_size();
  for (const auto& [name, tensor] : model.state_dict()) {
    const bool changed = name == "a.weight" || name == "d.bias";
    EXPECT_LE(relative_error(tensor, before.at(name) - (changed ? share : 0)), 1e-6) << name;
  }
}

// Clipping and scaling keep replicas equal, and cost no second average.
TEST(Gradients, ScaledInPlaceAreNotAveragedAgain) {
  const TensorMap wanted = updated([](Chain chain) { return 0.25 * loss_of(chain, batch_of()); });
  for (const Layout& layout : layouts()) {
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{made(7)};
    auto optimizer = plain_sgd(model.parameters());
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    step_of(model)(mine.x, mine.y);
    for (const auto& [name, tensor] : model.local_parameters()) {
      torch::Tensor gradient = tensor.grad();
      gradient.mul_(0.25);
    }
    optimizer.clip_grad_norm(1e6);
    comm::ProcessGroup& group = context().group(Group::kDP);
    const auto calls = group.traffic().calls.load();
    optimizer.step();
    EXPECT_EQ(group.traffic().calls.load(), calls) << layout.text();
    expect_state(model.state_dict(), wanted, layout.text());
  }
}

// With backward_passes_per_step 2 the first step does not average: an update
// after it still uses averages, and the second step's are right.
TEST(Gradients, OfAnUpdateBetweenTwoPasses) {
  for (const bool early : {false, true}) {
    init(config_of(Layout{1, 1}));
    const Ended ended;
    ModelOptions options;
    options.backward_passes_per_step = 2;
    DistributedModel model(made(7), options);
    auto optimizer = plain_sgd(model.parameters());
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    auto train_step = step_of(model);
    Chain chain = made(7);
    torch::optim::SGD reference(chain->parameters(), torch::optim::SGDOptions(0.1));
    for (int pass = 0; pass < 2; ++pass) {
      train_step(mine.x, mine.y);
      loss_of(chain, batch_of()).backward();
      if (early || pass == 1) {
        optimizer.step();
        reference.step();
      }
    }
    expect_state(model.state_dict(), state_of(chain), early ? "early" : "after both");
    expect_equal_replicas(model);
  }
}

// The backward of one of two passes reaches no parameter, and is one of the two: behind the second
// one gradients are averages, in the update after as well.
TEST(Gradients, OfAPassThatReachesNoParameter) {
  Chain chain = made(7);
  loss_of(chain, batch_of()).backward();
  const auto wanted = chain->named_parameters();
  for (const Layout& layout : layouts()) {
    if (layout.tp > 1) {
      continue; // of some parameters a rank has a part
    }
    for (const bool empty_first : {false, true}) {
      init(config_of(layout));
      const Ended ended;
      ModelOptions options;
      options.backward_passes_per_step = 2;
      DistributedModel model(made(7), options);
      auto optimizer = plain_sgd(model.parameters());
      const Batch mine = part_of(batch_of(), data_size(), data_rank());
      auto train_step = step_of(model);
      auto empty_step = tessera::step([&](torch::Tensor x) { model.backward(x.mean()); });
      for (int update = 0; update < 2; ++update) {
        optimizer.zero_grad();
        for (const bool empty : {empty_first, !empty_first}) {
          if (empty) {
            empty_step(mine.x.clone().requires_grad_());
          } else {
            train_step(mine.x, mine.y);
          }
        }
        for (const auto& [name, tensor] : model.local_parameters()) {
          EXPECT_LE(relative_error(tensor.grad(), wanted[name].grad()), 1e-5)
              << name << ", " << layout.text() << ", update " << update
              << (empty_first ? ", empty pass first" : ", empty pass second");
        }
      }
    }
  }
}

// With tensor parallelism alone a plain loop needs no step: backwards bring the sums of a TP_GROUP.
TEST(Gradients, OfAPlainLoopWithTensorParallelism) {
  constexpr int kUpdates = 4;
  for (const bool mixed : {false, true}) {
    Chain chain = made(7);
    torch::optim::SGD reference(chain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int i = 0; i < kUpdates; ++i) {
      reference.zero_grad();
      loss_of(chain, random_batches(16)(i)).backward();
      reference.step();
    }
    const TensorMap wanted = state_of(chain);
    for (const bool prescaled : {false, true}) {
      for (const bool sets_to_none : {false, true}) {
        if (world_size() == 1) {
          GTEST_SKIP() << "one rank";
        }
        Config config = config_of(Layout{1, 2});
        config.prescaled_batch = prescaled;
        config.ddp = true;
        init(config);
        const Ended ended;
        DistributedModel model{made(dp_rank() == 0 ? 7 : 8)};
        DistributedOptimizer optimizer(
            torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
        auto train_step = step_of(model);
        for (int i = 0; i < kUpdates; ++i) {
          const Batch mine = part_of(random_batches(16)(i), data_size(), data_rank());
          optimizer.zero_grad(sets_to_none);
          if (mixed && i % 2 == 1) {
            train_step(mine.x, mine.y);
          } else {
            torch::mse_loss(model(mine.x), mine.y).backward();
          }
          optimizer.step();
        }
        expect_state(
            model.state_dict(),
            wanted,
            str(mixed ? "mixed" : "plain", prescaled ? ", prescaled" : "", sets_to_none));
      }
    }
  }
}

/// Ways to set gradients to zero.
std::map<std::string, std::function<void(DistributedModel<Chain>&, DistributedOptimizer&)>>
zeroing() {
  return {
      {"optimizer, none", [](auto&, auto& optimizer) { optimizer.zero_grad(true); }},
      {"optimizer, zeros", [](auto&, auto& optimizer) { optimizer.zero_grad(false); }},
      {"model", [](auto& model, auto&) { model.zero_grad(); }},
      {"libtorch", [](auto& model, auto&) { model.net()->zero_grad(true); }}};
}

// A backward whose gradients are thrown away leaves no trace.
TEST(Gradients, OfABackwardThatIsThrownAway) {
  Chain chain = made(7);
  torch::optim::SGD reference(chain->parameters(), torch::optim::SGDOptions(0.1));
  for (int i = 0; i < 2; ++i) {
    reference.zero_grad();
    loss_of(chain, batch_of()).backward();
    reference.step();
  }
  for (const auto& [name, zero] : zeroing()) {
    if (world_size() == 1) {
      GTEST_SKIP() << "one rank";
    }
    init(config_of(Layout{1, 2}));
    const Ended ended;
    DistributedModel model{made(7)};
    auto optimizer = plain_sgd(model.parameters());
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    const auto backward = [&] { torch::mse_loss(model(mine.x), mine.y).backward(); };
    backward();
    optimizer.step();
    backward(); // on top of an average
    zero(model, optimizer);
    backward();
    optimizer.step();
    expect_state(model.state_dict(), state_of(chain), name);
  }
}

// What a script puts in the place of an average is one, of distributed parameters too.
TEST(Gradients, ReplacedBehindAStepStayWhatTheyAre) {
  const auto clamped = [](const torch::Tensor& gradient) { return gradient.clamp(-0.01, 0.01); };
  Chain chain = made(7);
  torch::optim::SGD reference(chain->parameters(), torch::optim::SGDOptions(0.1));
  loss_of(chain, batch_of()).backward();
  for (torch::Tensor& parameter : chain->parameters()) {
    parameter.mutable_grad() = clamped(parameter.grad());
  }
  reference.step();
  for (const Layout& layout : layouts()) {
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{made(7)};
    auto optimizer = plain_sgd(model.parameters());
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    step_of(model)(mine.x, mine.y);
    for (auto [name, parameter] : model.local_parameters()) {
      parameter.mutable_grad() = clamped(parameter.grad());
    }
    optimizer.step();
    expect_state(model.state_dict(), state_of(chain), layout.text());
  }
}

// The sum over a TP_GROUP is in a distributed gradient already, and it is an average.
TEST(Gradients, AddedToAnAverageOfADistributedParameterAreRefused) {
  for (const Layout& layout : layouts()) {
    if (layout.tp == 1) {
      continue;
    }
    init(config_of(layout));
    const Ended ended;
    DistributedModel model{made(7)};
    auto optimizer = plain_sgd(model.parameters());
    const Batch mine = part_of(batch_of(), data_size(), data_rank());
    auto train_step = step_of(model);
    for (const bool create_graph : {false, true}) { // which makes another tensor
      train_step(mine.x, mine.y);
      squares(model.local_parameters()).backward({}, /*keep_graph=*/true, create_graph);
      EXPECT_THAT(
          error_of<UserError>([&] { optimizer.step(); }),
          ::testing::AllOf(
              HasSubstr("divided over a tensor-parallel group and holds an average already"),
              HasSubstr("rank "),
              HasSubstr("inside the step function")))
          << layout.text() << ", create_graph " << create_graph;
      optimizer.zero_grad();
      train_step(mine.x, mine.y);
      optimizer.step(); // as if nothing had happened
      optimizer.zero_grad();
    }
  }
}

} // namespace
} // namespace tessera::testing
