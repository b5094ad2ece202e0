// What a step does with arguments, results, gradients, hooks and modes.
#include <numeric>

#include <gmock/gmock.h>

#include "tests/mpi/train/pair_net.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

Config pair_config(int microbatches) {
  return placed(2, microbatches, {{"b", 1}});
}

/// A type of the user's own that divides itself.
struct Words {
  std::vector<std::string> words;
  Words tessera_slice(int microbatches, int microbatch, int) const {
    const auto size = static_cast<std::ptrdiff_t>(words.size()) / microbatches;
    const auto from = words.begin() + microbatch * size;
    return {{from, from + size}};
  }
};

struct Opaque { // knows neither how to travel nor how to divide
  int value = 0;
};

TEST(Step, ArgumentsAreSplit) {
  init(pair_config(2));
  const Ended ended;
  DistributedModel model{PairNet()};
  StepOptions options;
  options.non_split_inputs = {1};
  options.input_split_axes = {{2, 1}};
  int calls = 0;
  auto look = tessera::step(
      [&](torch::Tensor rows,
          torch::Tensor whole,
          torch::Tensor columns,
          const std::map<std::string, std::vector<torch::Tensor>>& nested,
          const Words& words,
          const Opaque& opaque,
          double number) {
        const int i = calls++;
        EXPECT_EQ(rows.sizes(), (std::vector<std::int64_t>{2, 3}));
        EXPECT_EQ(rows[0][0].item<float>(), 6 * i);
        EXPECT_EQ(whole.sizes(), (std::vector<std::int64_t>{3}));
        EXPECT_EQ(columns.sizes(), (std::vector<std::int64_t>{3, 2}));
        EXPECT_EQ(columns[0][0].item<float>(), 2 * i);
        EXPECT_EQ(nested.at("x").at(1).size(0), 2);
        EXPECT_EQ(words.words.at(0), i == 0 ? "one" : "two");
        EXPECT_EQ(words.words.size(), 1);
        EXPECT_EQ(opaque.value, 5);
        EXPECT_EQ(number, 2.5);
        return rows;
      },
      options);
  const auto rows = torch::arange(12).view({4, 3}).to(torch::kFloat);
  const std::map<std::string, std::vector<torch::Tensor>> nested = {{"x", {rows, rows}}};
  const auto out = look(
      rows,
      torch::ones({3}),
      torch::arange(12).view({3, 4}).to(torch::kFloat),
      nested,
      Words{{"one", "two"}},
      Opaque{5},
      2.5);
  EXPECT_EQ(calls, pp_rank() == 0 ? 2 : 0);
  EXPECT_TRUE(out.concat().equal(rows));
  EXPECT_TRUE(out.merge().equal(rows));
  EXPECT_EQ(out.stack().sizes(), (std::vector<std::int64_t>{2, 2, 3}));
  EXPECT_TRUE(out.reduce_sum().equal(rows.narrow(0, 0, 2) + rows.narrow(0, 2, 2)));
  EXPECT_TRUE(out.reduce_mean().equal(out.reduce_sum() / 2));
  EXPECT_TRUE(out[1].equal(rows.narrow(0, 2, 2)));
}

TEST(Step, ResultsKeepTheirStructureOnEveryRank) {
  init(pair_config(2));
  const Ended ended;
  torch::manual_seed(3);
  DistributedModel model{PairNet()};
  const bool first = pp_rank() == 0;
  auto forward = tessera::step([&](torch::Tensor x) {
    auto out = model(x);
    std::map<std::string, torch::Tensor> named = {{"sum", out.sum()}};
    return std::make_tuple(out, named, std::vector<torch::Tensor>{x, out}, std::string("text"), 7);
  });
  // Arguments of other ranks than the first do not count.
  const auto x = torch::ones({4, kWidth});
  const auto [out, named, list, text, number] = forward(first ? x : torch::Tensor());
  static_assert(std::is_same_v<std::decay_t<decltype(out)>, StepOutput>);
  EXPECT_EQ(out.concat().sizes(), x.sizes());
  EXPECT_EQ(named.at("sum").outputs().size(), 2U);
  EXPECT_TRUE(list.at(0).concat().equal(x));
  EXPECT_TRUE(list.at(1).concat().equal(out.concat()));
  EXPECT_EQ(text, (std::vector<std::string>{"text", "text"}));
  EXPECT_EQ(number, (std::vector<int>{7, 7}));
  EXPECT_FALSE(out[0].requires_grad());
}

TEST(Step, BatchThatDoesNotDivide) {
  for (const bool in_first_step : {true, false}) {
    init(config_of(2, 4));
    const Ended ended;
    torch::manual_seed(3);
    DistributedModel model{PairNet()};
    auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
    const torch::NoGradGuard no_grad;
    if (!in_first_step) {
      forward(torch::ones({4, kWidth}));
    }
    const std::string text = error_of<UserError>([&] { forward(torch::ones({6, kWidth})); });
    EXPECT_THAT(text, HasSubstr("argument 0 of the step has 6 rows"));
    EXPECT_THAT(text, HasSubstr("4 microbatches do not divide"));
    const std::string axis = error_of<UserError>([&] { forward(torch::ones({})); });
    EXPECT_THAT(axis, HasSubstr("cannot be split along axis 0"));
    EXPECT_EQ(forward(torch::ones({8, kWidth})).concat().size(0), 8);
  }
}

// Gradients of `steps` steps, then what each parameter's gradient is.
template <typename Net = PairNet>
TensorMap gradients_of(const ModelOptions& options, int steps) {
  init(pair_config(2));
  const Ended ended;
  torch::manual_seed(3);
  DistributedModel model(Net(), options);
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  for (int i = 0; i < steps; ++i) {
    const Batch mine = mine_of(random_batches()(i));
    train_step(mine.x, mine.y);
  }
  TensorMap local;
  for (const auto& [name, parameter] : model.local_parameters()) {
    EXPECT_TRUE(parameter.grad().defined()) << name;
    local[name] = parameter.grad().clone();
  }
  TensorMap all;
  for (auto& part : allgather(local, Group::kPP)) {
    all.merge(part);
  }
  return all;
}

// Mean loss over the batches 0 .. steps - 1, added up.
template <typename Net = PairNet>
TensorMap plain_gradients(int steps, int replicas, double factor) {
  torch::manual_seed(3);
  Net net;
  for (int i = 0; i < steps; ++i) {
    const Batch batch = random_batches()(i);
    for (int r = 0; r < replicas; ++r) {
      const Batch part = part_of(batch, replicas, r);
      (torch::mse_loss(net(part.x), part.y) * factor / replicas).backward();
    }
  }
  TensorMap all;
  for (const auto& item : net->named_parameters()) {
    all[item.key()] = item.value().grad();
  }
  return all;
}

void expect_close(const TensorMap& got, const TensorMap& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_LE(relative_error(got.at(name), tensor), 1e-5) << name;
  }
}

TEST(Step, GradientsAddUpOverPasses) {
  const int replicas = world_size() / 2;
  ModelOptions options;
  options.backward_passes_per_step = 3;
  expect_close(gradients_of(options, 3), plain_gradients(3, replicas, 1));
  expect_close(gradients_of({}, 1), plain_gradients(1, replicas, 1));
}

/// Gives a module a view that was made without gradient recording. libtorch says that it requires a
/// gradient, since its base does, but no node would take one.
struct ViewNetImpl : PairNetImpl {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = torch::tanh(a(x));
    torch::Tensor view;
    {
      const torch::NoGradGuard no_grad;
      view = h.narrow(0, 0, h.size(0));
    }
    TORCH_CHECK(view.requires_grad() && view.grad_fn() == nullptr);
    return b(h) + b(view);
  }
};
TESSERA_MODULE(ViewNet);

TEST(Step, ViewsWithoutHistoryGetNoGradient) {
  const int replicas = world_size() / 2;
  expect_close(gradients_of<ViewNet>({}, 1), plain_gradients<ViewNet>(1, replicas, 1));
}

TEST(Step, GradientsBeforeTheLastPassAreThisReplicasOwn) {
  if (world_size() < 4) {
    GTEST_SKIP() << "needs data parallelism";
  }
  ModelOptions options;
  options.backward_passes_per_step = 3;
  const TensorMap two = gradients_of(options, 2);
  const TensorMap averaged = plain_gradients(2, 2, 1);
  EXPECT_GT(relative_error(two.at("b.weight"), averaged.at("b.weight")), 1e-3);
}

TEST(Step, GradientsAreSummedOverMicrobatchesWhenAsked) {
  ModelOptions options;
  options.average_grads_across_microbatches = false;
  options.overlapping_allreduce = false;
  expect_close(gradients_of(options, 1), plain_gradients(1, world_size() / 2, 2));
}

// What a script freezes has no gradient, what it thaws is averaged again.
TEST(Step, FrozenAndThawedParameters) {
  init(pair_config(2));
  const Ended ended;
  torch::manual_seed(3);
  DistributedModel model{PairNet()};
  DistributedOptimizer optimizer = sgd(model.parameters());
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(torch::mse_loss(model(x), y)); });
  const auto run = [&](bool frozen, int step) {
    model.net()->a->weight.requires_grad_(!frozen);
    optimizer.zero_grad(/*set_to_none=*/true);
    const Batch mine = mine_of(random_batches()(step));
    train_step(mine.x, mine.y);
    if (pp_rank() == 0) {
      EXPECT_EQ(model.net()->a->weight.grad().defined(), !frozen);
    }
    for (const auto& [name, parameter] : model.local_parameters()) {
      if (!parameter.grad().defined()) {
        continue;
      }
      const auto theirs = allgather(parameter.grad(), Group::kDP);
      for (const auto& gradient : theirs) {
        EXPECT_TRUE(gradient.equal(theirs[0])) << name << ", step " << step;
      }
    }
  };
  for (const bool frozen : {true, true, false, false, true}) {
    static int step = 0;
    run(frozen, step++);
  }
}

TEST(Step, HooksRunOnceAtTheirTime) {
  init(pair_config(1));
  const Ended ended;
  torch::manual_seed(3);
  DistributedModel model{PairNet()};
  std::string log;
  model.register_post_partition_hook([&] {
    EXPECT_TRUE(model.partitioned());
    EXPECT_EQ(model.local_parameters().size(), 2U);
    log += "partition ";
  });
  model.register_post_step_hook([&] { log += "step "; });
  auto forward = tessera::step([&](torch::Tensor x) {
    log += "run ";
    return model(x);
  });
  const torch::NoGradGuard no_grad;
  const auto x = torch::ones({2, kWidth});
  EXPECT_FALSE(model.partitioned());
  forward(x);
  forward(x);
  EXPECT_EQ(log, pp_rank() == 0 ? "partition run step run " : "partition step ");
  model.register_post_partition_hook([&] { log = "at once"; });
  EXPECT_EQ(log, "at once");
}

/// Batch norm (state that forward changes) and dropout (a mode) far away.
struct ModesImpl : torch::nn::Module {
  ModesImpl() {
    in = register_module("in", nn::Linear(kWidth, kWidth));
    norm = register_module("norm", nn::BatchNorm1d(kWidth));
    drop = register_module("drop", nn::Dropout(0.5));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return drop(norm(in(x)));
  }
  nn::Linear in{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::Dropout drop{nullptr};
};
TESSERA_MODULE(Modes);

TEST(Step, EvaluationAndBuffers) {
  for (const bool traced : {false, true}) {
    Config config = placed(2, 2, {{"norm", 1}, {"drop", 1}});
    if (traced) { // tracing must leave buffers alone
      config.partition.clear();
      config.auto_partition = true;
      config.memory_weight = 1.0;
    }
    torch::manual_seed(3);
    Modes plain;
    init(config);
    const Ended ended;
    torch::manual_seed(3);
    DistributedModel model{Modes()};
    auto train_step = tessera::step([&](torch::Tensor x) {
      auto out = model(x);
      model.backward(out.pow(2).mean());
    });
    bool grad_mode = true;
    auto evaluate = tessera::step([&](torch::Tensor x) {
      grad_mode = torch::GradMode::is_enabled();
      return model(x);
    });
    // The same rows on all replicas: buffers are those of the first.
    torch::manual_seed(4);
    const auto x = torch::randn({8, kWidth});
    train_step(x);
    for (int i = 0; i < 2; ++i) {
      plain(x.narrow(0, 4 * i, 4));
    }
    model.eval();
    plain->eval();
    torch::Tensor got;
    {
      const torch::NoGradGuard no_grad;
      got = evaluate(x).concat();
    }
    EXPECT_FALSE(pp_rank() == 0 && grad_mode);
    const auto wanted = plain(x).detach();
    EXPECT_LE(relative_error(got, wanted), 1e-5);
    const TensorMap state = model.state_dict();
    for (const auto& item : plain->named_buffers()) {
      ASSERT_TRUE(state.contains(item.key())) << item.key();
      EXPECT_LE(relative_error(state.at(item.key()), item.value()), 1e-5) << item.key();
    }
    EXPECT_EQ(state.size(), 7U);
    for (const auto& [name, gradient] : model.local_parameters()) {
      EXPECT_TRUE(gradient.grad().defined()) << name;
    }
    // Back in training mode the dropout is at work again.
    model.train();
    const torch::NoGradGuard no_grad;
    EXPECT_GT((evaluate(x).concat() == 0).sum().item<int>(), 8);
  }
}

} // namespace
} // namespace tessera::testing
