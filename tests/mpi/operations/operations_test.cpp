// Models that are divided by operations equal one process, whatever their classes are.
#include <mutex>
#include <optional>
#include <set>

#include <mpi.h>

#include <ATen/record_function.h>

#include <gmock/gmock.h>

#include "tests/support/parity.h"
#include "tests/support/tiny_models.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

Config by_operations(int pp, int microbatches = 1, const std::string& schedule = "interleaved") {
  Config config;
  config.partition_mode = "operations";
  config.pipeline_parallel_degree = pp;
  config.microbatches = microbatches;
  config.pipeline = schedule;
  config.ddp = world_size() > pp;
  config.timeout_seconds = 60;
  config.transport_buffer_bytes = 16 << 20;
  config.allow_ranks_without_parameters = true; // some have fewer groups than ranks
  return config;
}

template <typename MakeNet>
void check(MakeNet make_net) {
  const int world = world_size();
  for (const int pp : {2, 3, 4}) {
    if (world % pp != 0) {
      continue;
    }
    for (const int microbatches : {1, 4}) {
      for (const char* schedule : {"simple", "interleaved"}) {
        const auto wanted = train_plain(make_net, random_batches(), 3, microbatches * (world / pp));
        const auto got = train_distributed(
            by_operations(pp, microbatches, schedule), make_net, random_batches(), 3);
        expect_equal(got, wanted, str("pp ", pp, ", ", schedule, ", microbatches ", microbatches));
      }
    }
  }
}

torch::nn::Sequential plain_sequential() {
  return torch::nn::Sequential(
      torch::nn::Linear(kWidth, 16),
      torch::nn::ReLU(torch::nn::ReLUOptions(true)), // in place
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
      torch::nn::Linear(16, 16),
      torch::nn::Tanh(),
      torch::nn::Linear(16, 16),
      torch::nn::GELU(),
      torch::nn::Linear(16, kWidth));
}

// A Sequential whose calls have a result for the plain loop, too.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(torch::nn::Sequential layers) : body(std::move(layers)) {
    register_module("body", body);
  }
  torch::Tensor forward(torch::Tensor x) {
    return body->forward(x);
  }
  torch::nn::Sequential body;
};
TORCH_MODULE(Stack);

Stack plain_stack() {
  return Stack(plain_sequential());
}

// Without any holder of this library, a parameter of its own, branches and views.
struct PlainImpl : torch::nn::Module {
  PlainImpl() {
    scale = register_parameter("scale", torch::full({kWidth}, 1.5));
    shift = register_buffer("shift", torch::full({kWidth}, 0.25));
    left = register_module("left", torch::nn::Linear(kWidth, kWidth));
    right = register_module("right", torch::nn::Linear(kWidth, kWidth));
    out = register_module("out", torch::nn::Linear(2 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    auto h = x * scale + shift;
    auto a = torch::tanh(left(h));
    auto b = torch::sigmoid(right(h)).view({-1, 2, kWidth / 2}).transpose(1, 2);
    b = b.contiguous().view({-1, kWidth});
    auto mask = torch::tensor({1.f, 0.f, 1.f, 1.f, 1.f, 1.f, 0.f, 1.f});
    auto both = torch::zeros({x.size(0), 2 * kWidth});
    both.slice(1, 0, kWidth).copy_(a * mask);
    both.slice(1, kWidth).add_(b);
    return out(both) + h;
  }
  torch::Tensor scale, shift;
  torch::nn::Linear left{nullptr}, right{nullptr}, out{nullptr};
};
TORCH_MODULE(Plain);

TEST(Operations, PlainSequential) {
  check(plain_stack);
}

TEST(Operations, ModuleWithoutAHolder) {
  check([] { return Plain(); });
}

TEST(Operations, ReusedModule) {
  check([] { return Reused(); });
}

TEST(Operations, TiedWeights) {
  check([] { return Tied(); });
}

TEST(Operations, NestedInputsAndOutputs) {
  check([] { return Nested(); });
}

TEST(Operations, UnusedBranches) {
  check([] { return Unused(); });
}

Stack with_dropout() {
  return Stack(torch::nn::Sequential(
      torch::nn::Linear(kWidth, 16),
      torch::nn::Dropout(0.3),
      torch::nn::Linear(16, 16),
      torch::nn::BatchNorm1d(16),
      torch::nn::Dropout(0.3),
      torch::nn::Linear(16, kWidth)));
}

TEST(Operations, DropoutAndBatchStatisticsAsOneProcess) {
  if (world_size() > 3) {
    return; // several replicas draw other numbers than one process
  }
  const auto wanted = train_plain(with_dropout, random_batches(), 3, 1);
  const auto got =
      train_distributed(by_operations(world_size()), with_dropout, random_batches(), 3);
  expect_equal(got, wanted, "one microbatch continues the script's random numbers");
}

TEST(Operations, TheSameBitsInEveryRun) {
  Config config = by_operations(world_size(), 4);
  config.reproducible = true;
  const auto run = [&] { return train_distributed(config, plain_stack, random_batches(), 3); };
  const auto first = run();
  const auto second = run();
  EXPECT_EQ(first.losses, second.losses);
  for (const auto& [name, tensor] : first.parameters) {
    EXPECT_TRUE(torch::equal(tensor, second.parameters.at(name))) << name;
  }
}

TEST(Operations, EveryRankHasItsPartAndEvaluatesOtherShapes) {
  init(by_operations(world_size(), 2));
  const Ended ended;
  torch::manual_seed(3);
  auto plain = plain_sequential();
  torch::manual_seed(3);
  DistributedModel model(plain_sequential());
  auto evaluate = tessera::step([&](torch::Tensor x) { return model(x); });
  torch::NoGradGuard no_grad;
  for (const int rows : {4, 6, 4}) {
    torch::manual_seed(rows);
    const auto x = torch::randn({rows, kWidth});
    const auto got = evaluate(x).concat();
    EXPECT_LE(relative_error(got, plain->forward(x)), 1e-6) << rows;
  }
  EXPECT_FALSE(model.local_parameters().empty());
  EXPECT_LT(model.local_parameters().size(), plain->parameters().size());
}

std::string text_of_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// What the step function sees: one network whose course a switch changes.
struct SwitchedImpl : torch::nn::Module {
  SwitchedImpl() {
    a = register_module("a", torch::nn::Linear(kWidth, kWidth));
    b = register_module("b", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    auto h = a(x);
    return b(other ? h.sin() : h.tanh());
  }
  bool other = false;
  torch::nn::Linear a{nullptr}, b{nullptr};
};
TORCH_MODULE(Switched);

TEST(Operations, AStepWithOtherOperatorsIsAnErrorOnEveryRank) {
  init(by_operations(world_size(), 2));
  const Ended ended;
  DistributedModel model{Switched()};
  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).pow(2).mean();
    model.backward(loss);
    return loss;
  });
  const auto x = torch::ones({4, kWidth});
  train_step(x);
  model.net()->other = true;
  const std::string text = text_of_error([&] { train_step(x); });
  EXPECT_THAT(text, HasSubstr("operation 2 of the model's forward, aten::sin"));
  EXPECT_THAT(text, HasSubstr("aten::tanh"));
  model.net()->other = false;
  model.zero_grad();
  train_step(x);
}

// Operators whose backwards tell them apart, under the script's own wishes: the last rank, then the
// first, and the sine of the middle one with the last again.
struct WishedImpl : torch::nn::Module {
  WishedImpl() {
    a = register_module("a", torch::nn::Linear(kWidth, kWidth));
    b = register_module("b", torch::nn::Linear(kWidth, kWidth));
    c = register_module("c", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    {
      const tessera::partition last(last_rank);
      const tessera::colocation ends("ends");
      x = torch::tanh(a(x));
    }
    {
      const tessera::partition first(0);
      x = torch::sigmoid(b(x));
    }
    const tessera::colocation ends("ends");
    return c(torch::sin(x));
  }
  static inline int last_rank = 0;
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};
TORCH_MODULE(Wished);

/// The autograd functions that this process has run backwards: they are where their operators ran.
std::set<std::string>& backwards_here() {
  static std::set<std::string> names;
  return names;
}
std::mutex& backwards_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::unique_ptr<at::ObserverContext> note_backward(const at::RecordFunction& function) {
  const std::lock_guard lock(backwards_mutex());
  backwards_here().insert(function.name());
  return nullptr;
}

class SeenBackwards {
 public:
  SeenBackwards()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&note_backward)
                                          .scopes({at::RecordScope::BACKWARD_FUNCTION}))) {
    const std::lock_guard lock(backwards_mutex());
    backwards_here().clear();
  }
  ~SeenBackwards() {
    at::removeCallback(handle_);
  }
  SeenBackwards(const SeenBackwards&) = delete;
  SeenBackwards& operator=(const SeenBackwards&) = delete;

 private:
  at::CallbackHandle handle_;
};

void expect_operators_of(int last) {
  const auto ran = [&](const std::string& name) { return backwards_here().contains(name); };
  int rank = 0; // one pipeline: its ranks are those of the world
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  EXPECT_EQ(ran("TanhBackward0"), rank == last) << rank;
  EXPECT_EQ(ran("SinBackward0"), rank == last) << rank;
  EXPECT_EQ(ran("SigmoidBackward0"), rank == 0) << rank;
}

TEST(Operations, ScopesOfTheForwardSayWhereOperatorsRun) {
  const int last = WishedImpl::last_rank = world_size() - 1;
  const auto make_net = [] { return Wished(); };
  for (const bool automatic : {true, false}) {
    for (const char* schedule : {"simple", "interleaved"}) {
      Config config = by_operations(world_size(), 4, schedule);
      config.auto_partition = automatic;
      if (!automatic) {
        config.default_partition = 1;
      }
      const auto wanted = train_plain(make_net, random_batches(), 3, 4);
      const SeenBackwards seen;
      const auto got = train_distributed(config, make_net, random_batches(), 3);
      expect_equal(got, wanted, str(schedule, automatic ? ", automatic" : ", manual"));
      expect_operators_of(last);
    }
  }
}

TEST(Operations, ModulesThatTheScriptPlacesTakeTheirOperatorsAlong) {
  Config config = by_operations(world_size(), 2);
  config.auto_partition = false;
  config.partition = {{"body.3", 0}};
  config.default_partition = world_size() - 1;
  init(config);
  const Ended ended;
  Stack net = plain_stack();
  DistributedModel model(net);
  set_partition(*net->body->ptr(7), 0);
  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).pow(2).mean();
    model.backward(loss);
    return loss;
  });
  train_step(torch::ones({4, kWidth}));
  std::vector<std::string> mine;
  for (const auto& item : model.local_parameters()) {
    mine.push_back(item.first);
  }
  if (pp_rank() == 0) {
    EXPECT_THAT(
        mine,
        ::testing::UnorderedElementsAre(
            "body.3.weight", "body.3.bias", "body.7.weight", "body.7.bias"));
  } else {
    EXPECT_EQ(mine.size(), pp_rank() == world_size() - 1 ? 6U : 0U);
  }
}

struct ScopedImpl : torch::nn::Module {
  ScopedImpl() {
    a = register_module("a", Block());
    b = register_module("b", Block());
  }
  torch::Tensor forward(torch::Tensor x) {
    x = a(x);
    const tessera::colocation scope("tail");
    return b(x);
  }
  Block a{nullptr}, b{nullptr};
};
TESSERA_MODULE(Scoped);

TEST(Operations, AScopeThatCouldHaveNoEffectIsAnErrorOnEveryRank) {
  Config config = by_operations(world_size(), 2);
  config.partition_mode = "modules";
  init(config);
  const Ended ended;
  DistributedModel model{Scoped()};
  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).mean();
    model.backward(loss);
    return loss;
  });
  const std::string text = text_of_error([&] { train_step(torch::ones({4, kWidth})); });
  EXPECT_THAT(text, HasSubstr("tessera::colocation(\"tail\") is opened inside a step"));
}

TEST(Operations, ScopesOutsideOfTheForwardAreErrorsOnEveryRank) {
  for (const bool around : {true, false}) {
    init(by_operations(world_size(), 2));
    const Ended ended;
    DistributedModel model{plain_stack()};
    auto train_step = tessera::step([&](torch::Tensor x) {
      std::optional<tessera::partition> scope;
      if (around) {
        scope.emplace(1);
      }
      auto y = model(x);
      if (!around) {
        scope.emplace(1); // around the backward
      }
      auto loss = y.mean();
      model.backward(loss);
      return loss;
    });
    const std::string text = text_of_error([&] { train_step(torch::ones({4, kWidth})); });
    EXPECT_THAT(text, HasSubstr("tessera::partition(1)")) << around;
    EXPECT_THAT(text, HasSubstr(around ? "inside of its forward only" : "inside a step")) << around;
  }
}

TEST(Operations, WishesThatExcludeEachOtherAreAnErrorOnEveryRank) {
  init(by_operations(world_size(), 2));
  const Ended ended;
  WishedImpl::last_rank = world_size() - 1;
  auto net = Wished();
  net->c = net->replace_module("c", net->b); // of rank 0, and with the last
  DistributedModel model{net};
  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).mean();
    model.backward(loss);
    return loss;
  });
  std::string text;
  try {
    train_step(torch::ones({4, kWidth}));
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_THAT(text, HasSubstr("have to be on one rank"));
  EXPECT_THAT(text, HasSubstr("are in tessera::colocation(\"ends\")"));
}

struct ReaderImpl : torch::nn::Module {
  ReaderImpl() {
    a = register_module("a", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    return a(x) * x.abs().max().item<float>();
  }
  torch::nn::Linear a{nullptr};
};
TORCH_MODULE(Reader);

struct PairImpl : torch::nn::Module {
  PairImpl() {
    first = register_module("first", Block());
    second = register_module("second", Block());
  }
  torch::Tensor forward(torch::Tensor x) {
    auto h = first(x);
    return recomputes ? checkpoint_call({}, second, h) : second(h);
  }
  bool recomputes = false;
  Block first{nullptr}, second{nullptr};
};
TESSERA_MODULE(Pair);

TEST(Operations, RecomputationOfAnotherModelOfTheProcessIsNoMatter) {
  const Pair other;
  set_activation_checkpointing(other->second);
  const auto make_net = [] { return Pair(); };
  const auto wanted = train_plain(make_net, random_batches(), 3, 2);
  const auto got = train_distributed(by_operations(world_size(), 2), make_net, random_batches(), 3);
  expect_equal(got, wanted, "another model is recomputed");
}

TEST(Operations, AModuleThatIsRecomputedIsRefusedByName) {
  for (const bool by_call : {false, true}) {
    init(by_operations(world_size()));
    const Ended ended;
    Pair net;
    net->recomputes = by_call;
    if (!by_call) {
      set_activation_checkpointing(net->second);
    }
    DistributedModel model{net};
    auto train_step = tessera::step([&](torch::Tensor x) {
      auto loss = model(x).mean();
      model.backward(loss);
      return loss;
    });
    const std::string text = text_of_error([&] { train_step(torch::ones({4, kWidth})); });
    EXPECT_THAT(text, HasSubstr("activation checkpointing (of module 'second')")) << by_call;
  }
}

TEST(Operations, AForwardThatReadsNumbersIsNamedInTheFirstStep) {
  init(by_operations(world_size()));
  const Ended ended;
  DistributedModel model{Reader()};
  auto train_step = tessera::step([&](torch::Tensor x) {
    auto loss = model(x).mean();
    model.backward(loss);
    return loss;
  });
  const std::string text = text_of_error([&] { train_step(torch::ones({4, kWidth})); });
  EXPECT_THAT(text, HasSubstr("aten::item"));
  EXPECT_THAT(text, HasSubstr("\"partition_mode\": \"modules\""));
}

} // namespace
} // namespace tessera::testing
