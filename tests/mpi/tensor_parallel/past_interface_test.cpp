// What scripts do past the interface with layers that tensor parallelism has replaced: the numbers
// of one process, or an error that says what to write.
#include <functional>

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>

#include <gmock/gmock.h>

#include "tessera/tensor/torch_compat.h"

#include "tests/mpi/tensor_parallel/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

/// Two marked layers.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    torch::manual_seed(5);
    const tensor_parallelism marked;
    a = register_module("a", nn::Linear(4, 8));
    b = register_module("b", nn::Linear(8, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return b(torch::tanh(a(x)));
  }
  nn::Linear a{nullptr}, b{nullptr};
};
TESSERA_MODULE(Pair);

torch::Tensor samples() {
  torch::manual_seed(9);
  return torch::randn({8, 4});
}

template <typename Model>
auto square_step(const Model& model) {
  return tessera::step([&model](torch::Tensor x) {
    auto loss = model(x).pow(2).mean();
    model.backward(loss);
    return loss;
  });
}

/// Its gradients by name, on all ranks.
TensorMap change_of_step(
    const std::function<void(DistributedModel<Pair>&, torch::Tensor&)>& before) {
  DistributedModel model{Pair()};
  torch::Tensor x = part_of({samples(), samples()}, data_size(), data_rank()).x;
  before(model, x);
  DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(1.0)));
  auto train_step = square_step(model);
  TensorMap change = model.state_dict();
  train_step(x);
  optimizer.step();
  for (const auto& [name, tensor] : model.state_dict()) {
    change.at(name) = change.at(name) - tensor;
  }
  return change;
}

TEST(PastTheInterface, MembersOfReplacedLayersRefuseToBeRead) {
  init(tp_config(1, world_size()));
  const Ended ended;
  Pair net;
  const DistributedModel model{net};
  const auto refused = [](const auto& act) { return error_of<UserError>(act); };
  for (const auto& said : {
           refused([&] { net->a->weight.pow(2).sum(); }),
           refused([&] {
             const torch::NoGradGuard no_grad;
             net->a->weight.clamp_(-1, 1);
           }),
           refused([&] { torch::nn::functional::linear(samples(), net->a->weight); }),
           refused([&] { net->a->weight.norm(); }),
       }) {
    EXPECT_THAT(said, HasSubstr("parameter 'a.weight'"));
    EXPECT_THAT(said, HasSubstr("a DistributedLinear in the place of its module"));
    EXPECT_THAT(said, HasSubstr("over_parameters"));
  }
  EXPECT_EQ(net->a->weight.sizes(), torch::IntArrayRef({8, 4}));
}

TEST(PastTheInterface, OptimizersOfReplacedParametersAreErrors) {
  init(tp_config(1, world_size()));
  const Ended ended;
  Pair net;
  torch::optim::SGD early(net->parameters(), torch::optim::SGDOptions(1.0));
  const DistributedModel model{net};
  auto train_step = square_step(model);
  train_step(samples().narrow(0, 0, 2));
  DistributedOptimizer optimizer(std::move(early));
  EXPECT_THAT(
      error_of<ConfigError>([&] { optimizer.step(); }),
      HasSubstr("make the DistributedModel first"));
}

TEST(PastTheInterface, WeightsTiedThroughAMemberAreAnError) {
  init(tp_config(1, world_size()));
  const Ended ended;
  Pair net;
  {
    const tensor_parallelism marked;
    net->b = net->replace_module("b", nn::Linear(4, 8));
  }
  net->b->weight = net->a->weight;
  EXPECT_THAT(
      error_of<ConfigError>([&] { const DistributedModel model{net}; }),
      HasSubstr("its member 'weight' is another tensor than the parameter"));
}

TEST(PastTheInterface, ADerivativeOfADividedProductsGradientIsRefused) {
  for (const bool prescaled : {false, true}) {
    init(tp_config(1, world_size(), prescaled));
    const Ended ended;
    const DistributedModel model{Pair()};
    auto penalty = tessera::step([&](torch::Tensor x) {
      x.requires_grad_();
      const auto y = model(x).sum();
      const auto slope = torch::autograd::grad({y}, {x}, {}, true, true)[0];
      auto loss = slope.pow(2).sum() + y;
      model.backward(loss);
      return loss;
    });
    EXPECT_THAT(
        error_of<Error>([&] { penalty(samples().narrow(0, 0, 2)); }),
        HasSubstr("cannot be differentiated again"))
        << prescaled;
  }
}

/// Two marked layers of one shape, of which a call runs one.
struct EitherImpl : torch::nn::Module {
  EitherImpl() {
    torch::manual_seed(5);
    const tensor_parallelism marked;
    a = register_module("a", nn::Linear(4, 4));
    b = register_module("b", nn::Linear(4, 4));
  }
  torch::Tensor forward(const torch::Tensor& x, bool first) {
    return first ? a(x) : b(x);
  }
  nn::Linear a{nullptr}, b{nullptr};
};
TESSERA_MODULE(Either);

TEST(PastTheInterface, RanksThatCallDifferentLayersOfOneShapeAreAnError) {
  for (const bool mesh : {false, true}) {
    for (const bool mpi : {false, true}) {
      if (mesh && world_size() > 2) {
        continue; // the ranks of the other mesh row would wait for those that have found out
      }
      Config config = tp_config(1, world_size(), /*prescaled=*/true);
      if (mesh) {
        config.tensor_parallel_kind = config::TensorParallelKind::k2d;
      }
      if (mpi) {
        config.same_node_backend = config::SameNodeBackend::kMpi;
        config.timeout_seconds = 2; // the ranks wait for what never comes
      }
      init(config);
      const Ended ended;
      const DistributedModel model{Either()};
      const torch::NoGradGuard no_grad;
      model(samples(), true);
      const std::string said = error_of<Error>([&] { model(samples(), rank() != 1); });
      EXPECT_THAT(said, HasSubstr(rank() != 1 ? " for 'a'" : " for 'b'")) << mesh << mpi;
      if (!mpi) {
        EXPECT_THAT(said, HasSubstr(rank() != 1 ? " for 'b'" : " for 'a'")) << mesh;
      }
    }
  }
}

TEST(PastTheInterface, AnotherTypeAfterTheModelWasMadeTrainsTheSame) {
  init(tp_config(1, world_size()));
  const Ended ended;
  const TensorMap wanted = change_of_step([](DistributedModel<Pair>&, torch::Tensor&) {});
  const TensorMap got = change_of_step([](DistributedModel<Pair>& model, torch::Tensor& x) {
    model.get_module()->to(torch::kDouble);
    x = x.to(torch::kDouble);
  });
  for (const auto& [name, tensor] : wanted) {
    EXPECT_LE(relative_error(got.at(name).to(torch::kFloat), tensor), 1e-4) << name;
  }
}

TEST(PastTheInterface, AutocastReachesDividedProducts) {
  init(tp_config(1, world_size()));
  const Ended ended;
  const DistributedModel model{Pair()};
  auto forward = tessera::step([&](torch::Tensor x) {
    cpu_autocast::set_dtype(torch::kBFloat16);
    cpu_autocast::set_enabled(true);
    auto y = model(x);
    at::autocast::clear_cache();
    cpu_autocast::set_enabled(false);
    auto loss = y.to(torch::kFloat).pow(2).mean();
    model.backward(loss);
    return std::make_tuple(loss, torch::tensor(y.scalar_type() == torch::kBFloat16 ? 1.0 : 0.0));
  });
  const auto out = forward(samples().narrow(0, 0, 4));
  EXPECT_EQ(std::get<1>(out).reduce_mean().template item<double>(), 1.0);
}

TEST(PastTheInterface, EvaluationsMayBeInInferenceMode) {
  init(tp_config(1, world_size()));
  const Ended ended;
  const DistributedModel model{Pair()};
  DistributedOptimizer optimizer(
      torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1)));
  auto train_step = square_step(model);
  auto evaluate = tessera::step([&](torch::Tensor x) { return model(x).pow(2).mean(); });
  const torch::Tensor x = part_of({samples(), samples()}, data_size(), data_rank()).x;
  double last = 1e9;
  for (int i = 0; i < 3; ++i) {
    train_step(x);
    optimizer.step();
    const c10::InferenceMode guard;
    const double loss = evaluate(x).reduce_mean().template item<double>();
    EXPECT_LT(loss, last);
    last = loss;
  }
}

TEST(PastTheInterface, AParameterThatIsRegisteredLateIsAnError) {
  init(tp_config(1, world_size()));
  const Ended ended;
  Pair net;
  const DistributedModel model{net};
  auto train_step = square_step(model);
  train_step(samples().narrow(0, 0, 2));
  net->register_parameter("late", torch::ones({2}));
  EXPECT_THAT(
      error_of<UserError>([&] { train_step(samples().narrow(0, 0, 2)); }),
      HasSubstr("parameter 'late' was registered after the model"));
}

TEST(PastTheInterface, AGroupThatIsAddedToTheOptimizerIsTrained) {
  init(tp_config(1, world_size()));
  const Ended ended;
  TensorMap ends[3];
  for (const int later : {0, 1, 2}) { // at once, behind a step, before one
    DistributedModel model{Pair()};
    std::vector<torch::Tensor> first;
    std::vector<torch::Tensor> second;
    for (const auto& item : model.named_parameters()) {
      (item.key().starts_with("a.") ? first : second).push_back(item.value());
    }
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
    DistributedOptimizer optimizer(
        later > 0 ? torch::optim::SGD(first, options)
                  : torch::optim::SGD(model.parameters(), options));
    auto train_step = square_step(model);
    const torch::Tensor x = part_of({samples(), samples()}, data_size(), data_rank()).x;
    for (int i = 0; i < 4; ++i) {
      if ((i == 1 && later == 1) || (i == 0 && later == 2)) {
        optimizer.inner().add_param_group(torch::optim::OptimizerParamGroup(second));
      }
      for (torch::Tensor& parameter : second) {
        parameter.requires_grad_(i > 0); // frozen in the first step
      }
      optimizer.zero_grad();
      train_step(x);
      optimizer.step();
    }
    ends[later] = model.state_dict();
  }
  for (const auto& [name, tensor] : ends[0]) {
    EXPECT_TRUE(torch::equal(ends[1].at(name), tensor)) << name;
    EXPECT_TRUE(torch::equal(ends[2].at(name), tensor)) << name;
  }
}

TEST(PastTheInterface, ATensorOutsideOfTheModelIsSteppedOnWithAWarning) {
  init(tp_config(1, 1));
  const Ended ended;
  DistributedModel model{Pair()};
  std::vector<torch::Tensor> parameters = model.parameters();
  parameters.push_back(torch::zeros({3}, torch::requires_grad()));
  DistributedOptimizer optimizer(torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1)));
  auto train_step = square_step(model);
  train_step(samples().narrow(0, 0, 2));
  parameters.back().mutable_grad() = torch::ones({3});
  ::testing::internal::CaptureStderr();
  optimizer.step();
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("sizes [3] that is no parameter of a live DistributedModel"));
  EXPECT_TRUE(torch::allclose(parameters.back().detach(), torch::full({3}, -0.1)));
}

TEST(PastTheInterface, RanksWithAPrescaledBatchBringTheSame) {
  Config config = tp_config(1, world_size());
  config.prescaled_batch = true;
  init(config);
  const Ended ended;
  DistributedModel model{Pair()};
  auto train_step = tessera::step([&](torch::Tensor x, std::vector<torch::Tensor> more) {
    auto loss = (model(x) + more.at(1)).pow(2).mean();
    model.backward(loss);
    return loss;
  });
  const auto x = samples();
  const std::vector<torch::Tensor> more = {torch::Tensor(), torch::zeros({8, 4})};
  train_step(x, more);
  const auto error_with = [&](const torch::Tensor& own, const std::vector<torch::Tensor>& rest) {
    return error_of<UserError>([&] { train_step(own, rest); });
  };
  if (world_size() > 1) {
    const bool last = rank() == world_size() - 1;
    EXPECT_THAT(error_with(last ? x + 1 : x, more), HasSubstr("argument 0 of the step has not"));
    EXPECT_THAT(
        error_with(x, {torch::Tensor(), torch::full({8, 4}, last ? 1e-7 : 0)}),
        HasSubstr("argument 1 of the step has not the same numbers on the ranks 0, 1"));
    EXPECT_THAT(
        error_with(x, {last ? x : torch::Tensor(), torch::zeros({8, 4})}),
        HasSubstr("prescaled_batch"));
  }
  train_step(x, more); // the next good step is as if nothing had been
}

} // namespace
} // namespace tessera::testing
