// Functions of the parameters where they live: an L2 term over named parameters equals that of the
// plain script, in value and gradients.
#include <gmock/gmock.h>

#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kStrength = 0.02;

torch::Tensor l2_term(const std::string& name, const torch::Tensor& p) {
  return name.find("bias") == std::string::npos ? kStrength * p.pow(2).sum() : torch::Tensor();
}

template <typename Net>
torch::Tensor plain_l2(Net& net) {
  torch::Tensor sum = torch::zeros({});
  std::set<const void*> seen; // libtorch lists a shared parameter for each module
  for (const auto& item : net->named_parameters()) {
    const auto term = l2_term(item.key(), item.value());
    if (term.defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      sum = sum + term;
    }
  }
  return sum;
}

Trained regularised_plain(const MakeBatch& batches, int steps, int slices) {
  torch::manual_seed(7);
  Tied net;
  std::vector<torch::Tensor> unique;
  for (const auto& item : net->named_parameters()) {
    if (item.key() != "out.weight") { // shared with in.weight
      unique.push_back(item.value());
    }
  }
  torch::optim::SGD optimizer(unique, torch::optim::SGDOptions(0.1).momentum(0.9));
  Trained result;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    double total = 0;
    for (int i = 0; i < slices; ++i) {
      const Batch part = part_of(batches(step), slices, i);
      const auto loss = (squared(net(part.x), part.y) + plain_l2(net)) / slices;
      loss.backward();
      total += loss.item<double>();
    }
    optimizer.step();
    result.losses.push_back(total);
  }
  for (const auto& item : net->named_parameters()) {
    if (item.key() != "out.weight") {
      result.parameters[item.key()] = item.value().detach();
    }
  }
  return result;
}

Trained regularised(const Config& config, const MakeBatch& batches, int steps) {
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Tied()};
  DistributedOptimizer optimizer = sgd(model.parameters());
  // The first has another place among the functions and is gone when the second is called.
  auto dropped = std::make_optional(
      over_parameters(model, [](const std::string&, const torch::Tensor& p) { return p.sum(); }));
  const auto penalty = over_parameters(model, l2_term);
  dropped.reset();
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = squared(model(x), y) + penalty();
    model.backward(loss);
    return loss;
  });
  Trained result;
  for (int step = 0; step < steps; ++step) {
    const Batch mine = mine_of(batches(step));
    optimizer.zero_grad();
    const double loss = train_step(mine.x, mine.y).reduce_mean().item<double>();
    optimizer.step();
    double mean = 0;
    for (const double value : allgather(loss, Group::kDP)) {
      mean += value / dp_size();
    }
    result.losses.push_back(mean);
  }
  result.parameters = model.state_dict();
  return result;
}

TEST(OverParameters, L2EqualsThePlainScript) {
  const int steps = 5;
  for (const int pp : pipelines()) {
    for (const int microbatches : {1, 2}) {
      for (const int mode : {0, 1, 2}) { // dynamic, static, fast
        if (mode > 0 && pp == 1) {
          continue;
        }
        SCOPED_TRACE(str(text_of(pp, microbatches), ", mode ", mode));
        Config config = config_of(pp, microbatches);
        config.static_mode = mode > 0;
        config.static_mode_steps = mode > 0 ? 1 : 5;
        config.fast_mode = mode == 2;
        const auto wanted =
            regularised_plain(random_batches(), steps, microbatches * world_size() / pp);
        expect_equal(regularised(config, random_batches(), steps), wanted, "L2");
      }
    }
  }
}

TEST(OverParameters, StatisticsHaveNoGradients) {
  for (const int pp : pipelines()) {
    SCOPED_TRACE(text_of(pp, 2));
    torch::manual_seed(7);
    Chain plain;
    init(chain_config(pp, 2));
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{Chain()};
    const auto count = over_parameters(
        model, [](const std::string&, const torch::Tensor& p) { return torch::tensor(p.numel()); });
    const auto squares = over_parameters(
        model, [](const std::string&, const torch::Tensor& p) { return p.pow(2).sum(); });
    const auto nothing = over_parameters(
        model, [](const std::string&, const torch::Tensor&) { return torch::Tensor(); });
    auto look = tessera::step([&](torch::Tensor x) {
      EXPECT_TRUE(squares().requires_grad());
      const torch::NoGradGuard no_grad;
      EXPECT_FALSE(squares().requires_grad());
      EXPECT_EQ(nothing().item<double>(), 0);
      return std::make_tuple(count(), squares(), x);
    });
    const auto [counted, norm, x] = look(torch::ones({4, kWidth}));
    std::int64_t elements = 0;
    double sum = 0;
    for (const auto& p : plain->parameters()) {
      elements += p.numel();
      sum += p.detach().pow(2).sum().item<double>();
    }
    EXPECT_EQ(counted[0].item<std::int64_t>(), elements);
    EXPECT_NEAR(norm[1].item<double>(), sum, 1e-5 * sum);
    if (pp > 1) {
      EXPECT_THAT(error_of<UserError>([&] { squares(); }), HasSubstr("outside a step"));
    }
  }
}

TEST(OverParameters, ErrorsNameRankAndFunction) {
  if (world_size() < 2) {
    return;
  }
  init(chain_config(world_size(), 1));
  const Ended ended;
  DistributedModel model{Chain()};
  std::optional<ParameterFunction> only_here;
  if (rank() == 0) {
    only_here =
        over_parameters(model, [](const std::string&, const torch::Tensor& p) { return p.sum(); });
  }
  auto one_sided = tessera::step([&](torch::Tensor) { return (*only_here)(); });
  const auto x = torch::ones({2, kWidth});
  EXPECT_THAT(
      error_of<UserError>([&] { one_sided(x); }),
      AllOf(HasSubstr("rank 1"), HasSubstr("make it on every rank")));
  only_here.reset();
  const int last = world_size() - 1;
  const auto broken =
      over_parameters(model, [last](const std::string& name, const torch::Tensor& p) {
        TESSERA_CHECK(pp_rank() != last, "planted at ", name);
        return p.sum();
      });
  auto planted = tessera::step([&](torch::Tensor) { return broken(); });
  EXPECT_THAT(
      error_of<UserError>([&] { planted(x); }),
      AllOf(HasSubstr(str("rank ", last)), HasSubstr("planted at "), HasSubstr("microbatch 0")));
}

} // namespace
} // namespace tessera::testing
