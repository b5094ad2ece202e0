// What belongs between two steps, and what a script writes by habit though ranks share the work:
// each is an error or a warning that says what to write.
#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Runs one step of a chain and returns what went wrong.
template <typename Inside>
std::string error_in_step(const Config& config, const Inside& inside) {
  init(config);
  const Ended ended;
  DistributedModel model{Chain()};
  DistributedOptimizer optimizer = sgd(model.parameters());
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    inside(model, optimizer);
    model.backward(squared(model(x), y));
  });
  const Batch mine = mine_of(random_batches(16)(0));
  return error_of<UserError>([&] { train_step(mine.x, mine.y); });
}

TEST(BehindAStep, AnOptimizersStepInsideOfOneIsAnError) {
  for (const int pp : pipelines()) {
    SCOPED_TRACE(text_of(pp, 2));
    const std::string error =
        error_in_step(config_of(pp, 2), [](auto& /*model*/, auto& optimizer) { optimizer.step(); });
    EXPECT_THAT(
        error,
        AllOf(HasSubstr("optimizer.step() was called in a step function"), HasSubstr("behind")));
  }
}

TEST(BehindAStep, GradientsOfAPipelineAreNotSetToZeroInsideOfOne) {
  if (world_size() == 1) {
    return;
  }
  const std::string of_optimizer = error_in_step(
      config_of(2, 2), [](auto& /*model*/, auto& optimizer) { optimizer.zero_grad(); });
  EXPECT_THAT(of_optimizer, AllOf(HasSubstr("optimizer.zero_grad()"), HasSubstr("pp rank 0")));
  const std::string of_model =
      error_in_step(config_of(2, 2), [](auto& model, auto& /*optimizer*/) { model.zero_grad(); });
  EXPECT_THAT(of_model, AllOf(HasSubstr("model.zero_grad()"), HasSubstr("before the step")));
}

TEST(BehindAStep, AScriptOfAnotherPipelineRankIsNotWaitedForInsideOfOne) {
  if (world_size() == 1) {
    return;
  }
  const std::vector<std::pair<const char*, void (*)()>> calls = {
      {"barrier", [] { barrier(); }},
      {"allgather", [] { allgather(rank()); }},
      {"broadcast", [] { broadcast(rank(), 1, Group::kMP); }},
      {"recv_from", [] { recv_from<int>(1, Group::kMP); }}};
  for (const auto& [name, call] : calls) {
    const std::string error = error_in_step(
        config_of(2, 2), [run = call](auto& /*model*/, auto& /*optimizer*/) { run(); });
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr(str(name, " was called in a step function")),
            HasSubstr("on pp rank 1"),
            HasSubstr("behind the step")));
  }
  // The replicas of a pipeline rank run the same script, but one rank alone traces it.
  const auto over_replicas = [](bool also_traced) {
    return error_in_step(config_of(2, 2), [also_traced](auto& /*model*/, auto& /*optimizer*/) {
      if (also_traced || !is_tracing()) {
        allgather(1, Group::kDP);
      }
    });
  };
  EXPECT_EQ(over_replicas(false), "");
  if (world_size() > 2) {
    EXPECT_THAT(
        over_replicas(true),
        AllOf(HasSubstr("this rank alone traces it"), HasSubstr("!tessera::is_tracing()")));
  }
}

int rank_of_process() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

/// What rank 0 writes to its standard error.
template <typename Run>
std::string written(const Run& run) {
  ::testing::internal::CaptureStderr();
  run();
  const std::string text = ::testing::internal::GetCapturedStderr();
  return rank_of_process() == 0 ? text : std::string();
}

TEST(BehindAStep, GradientsThatALaterMicrobatchDropsAreAWarning) {
  for (const int microbatches : {1, 2}) {
    const std::string text = written([&] {
      error_in_step(config_of(1, microbatches), [](auto& /*model*/, auto& optimizer) {
        optimizer.zero_grad();
      });
    });
    if (rank_of_process() == 0) {
      EXPECT_EQ(text.find("in microbatch 1 of a step") != std::string::npos, microbatches == 2)
          << text;
    }
  }
}

TEST(BehindAStep, ReplicasWithBatchesOfDifferentSizesAreAWarning) {
  if (world_size() == 1) {
    return;
  }
  for (const bool alike : {true, false}) {
    const std::string text = written([&] {
      init(config_of(1, 1));
      const Ended ended;
      DistributedModel model{Chain()};
      auto train_step = tessera::step(
          [&](torch::Tensor x, torch::Tensor y) { model.backward(squared(model(x), y)); });
      const std::int64_t rows = alike || rank() > 0 ? 4 : 3;
      for (int i = 0; i < 2; ++i) {
        train_step(torch::ones({rows, kWidth}), torch::ones({rows, kWidth}));
      }
    });
    if (rank_of_process() == 0) {
      const auto first = text.find("batches of different sizes in step 0, rank 0 one of 3 rows");
      EXPECT_EQ(first != std::string::npos, !alike) << text;
      EXPECT_EQ(text.find("different sizes", first + 40), std::string::npos) << "once";
    }
  }
}

// The process warns once: this is its only test.
TEST(BehindAStep, AnArgumentThatIsNoBatchIsAWarning) {
  const auto run = [](std::int64_t others) {
    init(config_of(1, 2));
    const Ended ended;
    DistributedModel model{Chain()};
    auto forward = tessera::step(
        [&](torch::Tensor x, torch::Tensor weights) { return model(x).sum() * weights.sum(); });
    const torch::NoGradGuard no_grad;
    forward(torch::ones({8, kWidth}), torch::ones({others}));
  };
  const std::string alike = written([&] { run(8); });
  EXPECT_EQ(alike.find("rows and argument"), std::string::npos) << alike;
  const std::string text = written([&] { run(4); });
  if (rank_of_process() == 0) {
    EXPECT_THAT(text, HasSubstr("argument 0 of the step has 8 rows and argument 1 has 4"));
  }
}

void expect_no_numbers_of_other_ranks(const Config& config, bool delayed) {
  init(config);
  const Ended ended;
  const auto made = [delayed] {
    const delay_param_initialization scope(delayed);
    return Chain();
  };
  DistributedModel model{made()};
  DistributedOptimizer optimizer = sgd(model.parameters());
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(squared(model(x), y)); });
  const Batch mine = mine_of(random_batches(16)(0));
  const auto parameters = model.parameters();
  for (int step = 0; step < 2; ++step) {
    train_step(mine.x, mine.y);
    const std::string error =
        error_of<UserError>([&] { torch::nn::utils::clip_grad_norm_(parameters, 1.0); });
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("the gradient of parameter '"),
            HasSubstr("optimizer.clip_grad_norm(max_norm)")));
    // What changes each element by itself is done by the ranks that own them.
    torch::nn::utils::clip_grad_value_(parameters, 0.01);
    for (const at::Tensor& parameter : parameters) {
      ASSERT_TRUE(parameter.grad().defined());
      EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
      parameter.mutable_grad().mul_(0.5);
      parameter.mutable_grad() = parameter.grad().clamp(-1, 1);
      const torch::NoGradGuard no_grad;
      parameter.mutable_grad().add_(torch::zeros_like(parameter));
    }
    for (const auto& [name, parameter] : model.local_parameters()) {
      EXPECT_LE(parameter.grad().abs().max().item<double>(), 0.005 + 1e-9) << name;
    }
    EXPECT_GT(optimizer.clip_grad_norm(1e9), 0);
    optimizer.step();
    // Each of the ways in which scripts set gradients to zero.
    switch (step) {
      case 0:
        model.net()->zero_grad();
        break;
      default:
        optimizer.zero_grad(true);
    }
  }
}

// libtorch's own clipping would take the norm of one rank's gradients.
TEST(BehindAStep, GradientsOfOtherRanksHaveNoNumbers) {
  for (const bool delayed : {false, true}) {
    if (world_size() > 1) {
      SCOPED_TRACE(delayed ? "delayed" : "made at once");
      expect_no_numbers_of_other_ranks(chain_config(2, 2), delayed);
    }
  }
}

} // namespace
} // namespace tessera::testing
