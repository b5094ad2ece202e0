// Where modules go when the script or a file says so, and what state
// dictionaries hold before and after that.
#include <filesystem>

#include <unistd.h>

#include <gmock/gmock.h>

#include "tessera/model/model_core.h"
#include "tessera/nn/module/remote_tensor.h"
#include "tessera/train/model_access.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using Assignment = std::map<std::string, int>;

struct TrioImpl : torch::nn::Module {
  explicit TrioImpl(bool scopes = false) {
    a = register_module("a", Block());
    if (scopes) {
      const partition outer(1);
      b = register_module("b", Block());
      const partition inner(0);
      c = register_module("c", nn::Linear(kWidth, kWidth));
    } else {
      b = register_module("b", Block());
      c = register_module("c", nn::Linear(kWidth, kWidth));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return c(b(a(x)));
  }
  Block a{nullptr}, b{nullptr};
  nn::Linear c{nullptr};
};
TESSERA_MODULE(Trio);

// Runs one forward; what it returns must be what one process computes.
Assignment assignment_of(const Config& config, bool scopes) {
  torch::manual_seed(5);
  Trio plain(false);
  const auto x = torch::ones({4, kWidth});
  const auto wanted = plain(x).detach();
  init(config);
  const Ended ended;
  torch::manual_seed(5);
  DistributedModel model{Trio(scopes)};
  bool traced = false;
  auto forward = tessera::step([&](torch::Tensor in) {
    traced = traced || is_tracing();
    return model(in);
  });
  const torch::NoGradGuard no_grad;
  EXPECT_LE(relative_error(forward(x).concat(), wanted), 1e-6);
  const bool traces = config.auto_partition && !config.skip_tracing && !config.load_partition;
  EXPECT_EQ(traced, traces && rank() == 0);
  // Each rank holds what it owns, and only that.
  const auto& plan = train::ModelAccess::core(model)->plan().partition;
  for (const auto& item : model.net()->named_parameters()) {
    const auto module = item.key().substr(0, item.key().rfind('.'));
    const bool here = nn::remote_tensor(item.value()) == nullptr;
    EXPECT_EQ(here, plan.at(module) == pp_rank()) << item.key();
  }
  return plan;
}

TEST(Partition, ByScopes) {
  Config config = config_of(2, 2);
  config.auto_partition = false;
  config.default_partition = 0;
  const Assignment wanted = {
      {"", 0}, {"a", 0}, {"a.a", 0}, {"a.b", 0}, {"b", 1}, {"b.a", 1}, {"b.b", 1}, {"c", 0}};
  EXPECT_EQ(assignment_of(config, true), wanted);
}

TEST(Partition, ByTheConfigsMap) {
  const Assignment wanted = {
      {"", 0}, {"a", 0}, {"a.a", 1}, {"a.b", 0}, {"b", 1}, {"b.a", 1}, {"b.b", 0}, {"c", 1}};
  EXPECT_EQ(
      assignment_of(placed(2, 2, {{"a.a", 1}, {"b", 1}, {"b.b", 0}, {"c", 1}}), false), wanted);
}

TEST(Partition, ByDefaultPartition) {
  Config config = placed(2, 2, {{"a", 0}});
  config.default_partition = 1; // the model itself is not on pp rank 0
  const Assignment got = assignment_of(config, false);
  EXPECT_EQ(got.at(""), 1);
  EXPECT_EQ(got.at("a.b"), 0);
  EXPECT_EQ(got.at("c"), 1);
}

TEST(Partition, WrongPathIsAnErrorOnEveryRank) {
  init(placed(2, 2, {{"nowhere", 1}}));
  const Ended ended;
  DistributedModel model{Trio()};
  auto forward = tessera::step([&](torch::Tensor in) { return model(in); });
  EXPECT_THAT(
      error_of<PlanError>([&] {
        forward(torch::ones({2, kWidth}));
      }),
      HasSubstr("nowhere"));
}

TEST(Partition, WithoutTracing) {
  Config config = config_of(2, 2);
  config.skip_tracing = true;
  const Assignment got = assignment_of(config, false);
  EXPECT_EQ(got.size(), 8U);
}

TEST(Partition, SavedToAFileAndLoaded) {
  int id = static_cast<int>(::getpid());
  MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
  const auto path =
      std::filesystem::temp_directory_path() / str("tessera_partition_test_", id, ".json");
  Config config = config_of(2, 2);
  config.partition_file = path.string();
  const Assignment saved = assignment_of(config, false);
  config.load_partition = true;
  config.memory_weight = 0.0;
  EXPECT_EQ(assignment_of(config, false), saved);
  MPI_Barrier(MPI_COMM_WORLD);
  if (id == static_cast<int>(::getpid())) {
    std::filesystem::remove(path);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  init(config);
  const Ended ended;
  DistributedModel model{Trio()};
  auto forward = tessera::step([&](torch::Tensor in) { return model(in); });
  EXPECT_THAT(
      error_of<PlanError>([&] {
        forward(torch::ones({2, kWidth}));
      }),
      HasSubstr("cannot be read"));
}

TensorMap state_of_plain(int seed) {
  torch::manual_seed(seed);
  Trio plain;
  TensorMap state;
  for (const auto& item : plain->named_parameters()) {
    state[item.key()] = item.value().detach().clone();
  }
  return state;
}

void expect_state(const TensorMap& got, const TensorMap& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    EXPECT_TRUE(got.at(name).equal(tensor)) << name;
  }
}

// Every name that does not fit, on whichever rank it is, on every rank.
void expect_problems(const std::string& text) {
  EXPECT_THAT(text, HasSubstr("'a.a.bias' is missing"));
  EXPECT_THAT(text, HasSubstr("'c.bias' is missing"));
  EXPECT_THAT(text, HasSubstr("'c.weight' has shape [2, 2], the model's is [8, 8]"));
  EXPECT_THAT(text, HasSubstr("'d.weight' is not in the model"));
}

TensorMap damaged(TensorMap state) {
  state.erase("a.a.bias");
  state.erase("c.bias");
  state["c.weight"] = torch::ones({2, 2});
  state["d.weight"] = torch::ones({2, 2});
  return state;
}

// Each rank makes only its own parameters, with the values that a process which
// makes all of them gets.
TEST(Partition, OfAModelWithoutMemory) {
  const auto x = torch::rand({4, kWidth});
  for (const bool automatic : {true, false}) {
    torch::manual_seed(11);
    Trio plain{nullptr};
    {
      const tracer::DelayedInitScope delayed;
      plain = Trio();
    }
    tracer::materialize(*plain);
    const auto wanted = plain(x).detach();
    Config config = automatic ? config_of(2, 2) : placed(2, 2, {{"b", 1}, {"c", 1}});
    init(config);
    const Ended ended;
    torch::manual_seed(11);
    Trio net{nullptr};
    {
      const delay_param_initialization delayed;
      net = Trio();
    }
    EXPECT_TRUE(tracer::has_delayed(*net));
    DistributedModel model{net};
    auto forward = tessera::step([&](torch::Tensor in) { return model(in); });
    const torch::NoGradGuard no_grad;
    EXPECT_LE(relative_error(forward(x).concat(), wanted), 1e-6);
    for (const auto& [name, tensor] : model.state_dict()) {
      EXPECT_TRUE(tensor.equal(plain->named_parameters()[name])) << name;
    }
    const auto here = model.local_parameters().size();
    EXPECT_GT(here, 0U);
    EXPECT_LT(here, 10U);
  }
}

TEST(State, LoadedAfterThePartition) {
  init(placed(2, 1, {{"b", 1}, {"c", 1}}));
  const Ended ended;
  torch::manual_seed(rank());
  DistributedModel model{Trio()};
  EXPECT_THAT(error_of<ConfigError>([&] { model.state_dict(); }), HasSubstr("not partitioned yet"));
  auto forward = tessera::step([&](torch::Tensor in) { return model(in); });
  const torch::NoGradGuard no_grad;
  forward(torch::ones({2, kWidth}));
  const TensorMap before = model.state_dict();
  expect_problems(
      error_of<CheckpointError>([&] { model.load_state_dict(damaged(state_of_plain(11))); }));
  expect_state(model.state_dict(), before); // nothing was half loaded
  model.load_state_dict(state_of_plain(11));
  expect_state(model.state_dict(), state_of_plain(11));
  for (const auto& [name, tensor] : state_of_plain(11)) {
    EXPECT_FALSE(before.at(name).equal(tensor)) << name; // it was a copy
  }
  // Only what it has, when not strict.
  TensorMap part = {{"c.bias", torch::ones({kWidth})}};
  model.load_state_dict(part, false);
  EXPECT_TRUE(model.state_dict().at("c.bias").equal(part.at("c.bias")));
  EXPECT_EQ(model.local_state_dict().contains("c.bias"), pp_rank() == 1);
  const TensorMap first_only = model.state_dict(true);
  EXPECT_EQ(first_only.size(), pp_rank() == 0 ? before.size() : 0U);
}

TEST(State, LoadedBeforeThePartition) {
  init(placed(2, 1, {{"b", 1}, {"c", 1}}));
  const Ended ended;
  torch::manual_seed(rank());
  DistributedModel model{Trio()};
  bool hook_ran = false;
  model.register_post_partition_hook([&] { hook_ran = true; });
  auto forward = tessera::step([&](torch::Tensor in) { return model(in); });
  const auto x = torch::ones({2, kWidth});
  expect_problems(
      error_of<CheckpointError>([&] { model.load_state_dict(damaged(state_of_plain(11))); }));
  const torch::NoGradGuard no_grad;
  model.load_state_dict(state_of_plain(11));
  EXPECT_FALSE(hook_ran);
  const auto out = forward(x).concat();
  EXPECT_TRUE(hook_ran);
  expect_state(model.state_dict(), state_of_plain(11));
  torch::manual_seed(11);
  Trio plain;
  EXPECT_LE(relative_error(out, plain(x)), 1e-6);
}

/// One module registered under two names.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl() {
    a = register_module("a", Block());
    register_module("again", a);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return a(x);
  }
  Block a{nullptr};
};
TESSERA_MODULE(Twice);

TEST(State, NamesOfAModuleThatIsRegisteredTwice) {
  init(placed(2, 1, {{"a", 1}}));
  const Ended ended;
  DistributedModel model{Twice()};
  // What a plain script saves: each tensor under every name.
  TensorMap state;
  for (const auto& item : model.net()->named_parameters()) {
    state[item.key()] = torch::full_like(item.value(), 0.5);
  }
  EXPECT_TRUE(state.contains("again.a.weight"));
  model.load_state_dict(state);
  auto forward = tessera::step([&](torch::Tensor in) { return model(in); });
  const torch::NoGradGuard no_grad;
  forward(torch::ones({2, kWidth}));
  const TensorMap got = model.state_dict();
  EXPECT_EQ(got.size(), 4U);
  EXPECT_TRUE(got.at("a.a.weight").equal(state.at("a.a.weight")));
}

} // namespace
} // namespace tessera::testing
