// The smaller things that a script asks of a model and of its process: what is here, hooks that
// are taken away, groups, objects between ranks, what a launcher said.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include <gmock/gmock.h>

#include "tessera/comm/process_group.h"
#include "tessera/model/model_core.h"
#include "tessera/nn/module/remote_tensor.h"
#include "tessera/train/model_access.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Group kGroups[] =
    {Group::kWorld, Group::kMP, Group::kDP, Group::kTP, Group::kPP, Group::kRDP};

/// No holder has it: a part of the module around it.
struct BareImpl : torch::nn::Module {
  BareImpl() {
    weight = register_parameter("weight", torch::ones({kWidth}));
  }
  torch::Tensor weight;
};

struct RoomImpl : torch::nn::Module {
  RoomImpl() {
    block = register_module("block", Block());
    bare = register_module("bare", std::make_shared<BareImpl>());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return block(x) * bare->weight;
  }
  Block block{nullptr};
  std::shared_ptr<BareImpl> bare;
};
TESSERA_MODULE(Room);

struct HouseImpl : torch::nn::Module {
  /// `scope` >= 0: the first room is made in the scope of that partition.
  explicit HouseImpl(int scope = -1) {
    std::optional<partition> scoped;
    if (scope >= 0) {
      scoped.emplace(scope);
    }
    first = register_module("first", Room());
    scoped.reset();
    second = register_module("second", Room());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(first(x));
  }
  Room first{nullptr}, second{nullptr};
};
TESSERA_MODULE(House);

template <typename Net>
void run_once(const DistributedModel<Net>& model, int rows = 4) {
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  const torch::NoGradGuard no_grad;
  forward(torch::ones({rows, kWidth}));
}

TEST(Surface, ModulesOfThisRank) {
  init(placed(2, 2, {{"second", 1}}));
  const Ended ended;
  DistributedModel model{House()};
  EXPECT_THAT(
      error_of<ConfigError>([&] { model.local_modules(); }), HasSubstr("not partitioned yet"));
  run_once(model);
  std::vector<std::string> names;
  const auto named = model.local_named_modules();
  const auto modules = model.local_modules();
  ASSERT_EQ(named.size(), modules.size());
  for (std::size_t i = 0; i < named.size(); ++i) {
    names.push_back(named[i].first);
    EXPECT_EQ(named[i].second, modules[i]);
    for (const auto& parameter : modules[i]->parameters(/*recurse=*/false)) {
      EXPECT_EQ(nn::remote_tensor(parameter), nullptr) << named[i].first;
    }
  }
  const auto room = [](const std::string& path) {
    return std::vector<std::string>{
        path, path + ".block", path + ".block.a", path + ".block.b", path + ".bare"};
  };
  std::vector<std::string> wanted = room(pp_rank() == 0 ? "first" : "second");
  if (pp_rank() == 0) {
    wanted.insert(wanted.begin(), "");
  }
  EXPECT_EQ(names, wanted);
  EXPECT_EQ(model.get_module(), model.net().ptr());
}

TEST(Surface, HooksThatAreTakenAwayDoNotRun) {
  init(placed(2, 2, {{"second", 1}}));
  const Ended ended;
  DistributedModel model{House()};
  std::vector<std::string> ran;
  const auto note = [&](const std::string& name) { return [&ran, name] { ran.push_back(name); }; };
  const HookHandle kept = model.register_post_partition_hook(note("partition"));
  const HookHandle gone = model.register_post_partition_hook(note("not this"));
  model.register_post_step_hook(note("step"));
  const HookHandle gone_too = model.register_post_step_hook(note("nor this"));
  gone.remove();
  gone.remove();
  gone_too.remove();
  HookHandle().remove();
  run_once(model);
  kept.remove(); // it has run
  run_once(model);
  model.register_post_partition_hook(note("at once")).remove();
  EXPECT_THAT(ran, ElementsAre("partition", "step", "at once"));
}

// As the documentation's hooks: the optimizer is that of the model, wherever it has moved.
TEST(Surface, HooksAreGivenModelAndOptimizer) {
  using Optimizer = optim::DistributedOptimizer;
  init(placed(2, 2, {{"second", 1}}));
  const Ended ended;
  DistributedModel model{House()};
  DistributedModel other{House()};
  std::vector<std::string> ran;
  std::optional<DistributedOptimizer> optimizer;
  const auto note = [&](const std::string& name) {
    return [&, name](const Model& given, Optimizer* of) {
      const bool same = given.get_module() == model.net().ptr() && given.partitioned();
      ran.push_back(
          name + (same ? "" : ", another model") +
          (of == nullptr       ? ", none"
           : of == &*optimizer ? ", optimizer"
                               : ", another optimizer"));
    };
  };
  model.register_post_partition_hook(note("partition"));
  model.register_post_partition_hook(note("not this")).remove();
  model.register_post_step_hook(note("step"));
  DistributedOptimizer made = sgd(model.parameters());
  optimizer.emplace(std::move(made));
  DistributedOptimizer of_other = sgd(other.parameters());
  // What a hook is for: state of the optimizer that goes by the partition.
  std::size_t names = 0;
  model.register_post_step_hook([&](const Model& given, Optimizer* of) {
    names = of->local_state_dict().groups.at(0).parameters.size();
    EXPECT_EQ(names, given.local_parameters().size());
  });
  auto train_step =
      tessera::step([&](torch::Tensor x) { model.backward((model(x) + other(x)).pow(2).mean()); });
  train_step(torch::ones({4, kWidth}));
  optimizer.reset();
  model.register_post_partition_hook(note("at once"));
  EXPECT_GT(names, 0U);
  EXPECT_THAT(ran, ElementsAre("partition, optimizer", "step, optimizer", "at once, none"));
}

TEST(Surface, SetPartitionIsTheLastWord) {
  Config config = config_of(2, 2);
  config.auto_partition = false;
  config.default_partition = 0;
  init(config);
  const Ended ended;
  House house(/*scope=*/1);
  set_partition(house->first, 0);
  DistributedModel model{house};
  set_partition(house->second, 1);
  set_partition(house->second->block->b, 0);
  EXPECT_THAT(
      error_of<ConfigError>([&] { set_partition(house->second, 2); }),
      HasSubstr("pipeline_parallel_degree is 2; write 0 to 1"));
  EXPECT_THROW(set_partition(house->second, -1), ConfigError);
  EXPECT_THAT(
      error_of<ConfigError>([&] { set_partition(*house->second->bare, 1); }),
      HasSubstr("not held by a tessera module holder"));
  run_once(model);
  const std::map<std::string, int> wanted = {
      {"", 0},
      {"first", 0},
      {"first.block", 0},
      {"first.block.a", 0},
      {"first.block.b", 0},
      {"second", 1},
      {"second.block", 1},
      {"second.block.a", 1},
      {"second.block.b", 0}};
  EXPECT_EQ(train::ModelAccess::core(model)->plan().partition, wanted);
  EXPECT_THAT(
      error_of<UserError>([&] { set_partition(house->second, 0); }),
      HasSubstr("is partitioned already"));
}

TEST(Surface, SetPartitionNeedsAManualPartition) {
  init(config_of(2, 2));
  const Ended ended;
  House house;
  EXPECT_THAT(
      error_of<ConfigError>([&] { set_partition(house->second, 1); }),
      HasSubstr("\"auto_partition\": false"));
}

TEST(Surface, ModelCreationIsThreeScopes) {
  {
    const model_creation scope(true, torch::kDouble, {{"use_normal", true}});
    const House house;
    EXPECT_TRUE(tracer::has_delayed(*house));
    EXPECT_TRUE(nn::is_marked_tensor_parallel(*house->first));
    EXPECT_EQ(nn::tensor_parallel_options(*house->first).count("use_normal"), 1U);
    EXPECT_EQ(house->parameters().front().scalar_type(), torch::kDouble);
  }
  {
    const model_creation scope(false, {}, {{"use_normal", true}});
    const House house;
    EXPECT_TRUE(tracer::has_delayed(*house));
    EXPECT_FALSE(nn::is_marked_tensor_parallel(*house->first));
    EXPECT_TRUE(nn::tensor_parallel_options(*house->first).empty());
  }
  const House house;
  EXPECT_FALSE(tracer::has_delayed(*house));
  EXPECT_FALSE(nn::is_marked_tensor_parallel(*house->first));
  EXPECT_EQ(house->parameters().front().scalar_type(), torch::kFloat);
}

TEST(Surface, AParameterIsGivenToAnOptimizerOnce) {
  init(config_of(1, 1));
  const Ended ended;
  DistributedModel model{House()};
  auto twice = model.parameters();
  twice.push_back(twice.front());
  EXPECT_THAT(error_of<ConfigError>([&] { sgd(twice); }), HasSubstr("was given a parameter twice"));
}

TEST(Surface, APortIsTakenAndSaidToChangeNothing) {
  ::testing::internal::CaptureStderr();
  Config config = config_of(1, 1);
  config.ddp = true;
  config.ddp_port = 29500;
  init(config);
  const Ended ended;
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("ddp_port 29500 changes nothing") != std::string::npos, rank() == 0);
}

/// Pipelines of two ranks, replicas of those, and tensor-parallel ranks where there are enough.
Config every_group() {
  Config config = config_of(2, 2);
  if (world_size() == 4) {
    config.tensor_parallel_degree = 2;
  }
  config.ddp = true;
  return config;
}

/// What is learnt from as many batches as the last replica has; each of the others has one less
/// than the next. A replica that is out of data counts as one whose gradient is zero.
TEST(Surface, AReplicaThatIsOutOfDataGivesABatchOfWeightZero) {
  constexpr double kRate = 0.1;
  Config config = config_of(1, 2);
  config.ddp = true;
  init(config);
  const Ended ended;
  const int replicas = dp_size();
  const auto batches_of = [](int replica) { return 1 + replica; };
  const auto make = [] {
    torch::manual_seed(7);
    return torch::nn::Linear(kWidth, kWidth);
  };
  torch::nn::Linear plain = make();
  torch::optim::SGD plain_optimizer(plain->parameters(), kRate);
  DistributedModel model(make());
  DistributedOptimizer optimizer(torch::optim::SGD(model.parameters(), kRate));
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y, torch::Tensor weight) {
    model.backward(torch::mse_loss(model(x), y) * weight.mean());
  });
  const auto batch_of = [&](int step, int replica) {
    return part_of(random_batches(8 * replicas)(step), replicas, replica);
  };
  int steps = 0;
  for (bool any = true; any; ++steps) {
    const bool has = steps < batches_of(dp_rank());
    const std::vector<bool> all = allgather(has, Group::kDP);
    any = std::find(all.begin(), all.end(), true) != all.end();
    if (!any) {
      break;
    }
    const Batch mine = batch_of(steps, dp_rank());
    optimizer.zero_grad();
    train_step(mine.x, mine.y, torch::full({mine.x.size(0)}, has ? 1.0 : 0.0));
    optimizer.step();
    plain_optimizer.zero_grad();
    for (int replica = 0; replica < replicas; ++replica) {
      if (steps < batches_of(replica)) {
        const Batch theirs = batch_of(steps, replica);
        (torch::mse_loss(plain(theirs.x), theirs.y) / replicas).backward();
      }
    }
    plain_optimizer.step();
  }
  EXPECT_EQ(steps, replicas);
  const TensorMap state = model.state_dict();
  for (const auto& item : plain->named_parameters()) {
    EXPECT_LE(relative_error(state.at(item.key()), item.value()), 1e-5) << item.key();
  }
}

TEST(Surface, GroupsOfTheScriptsOwnCollectives) {
  init(every_group());
  const Ended ended;
  for (const Group group : kGroups) {
    SCOPED_TRACE(topology::name_of(group));
    comm::ProcessGroup& own = process_group(group);
    EXPECT_EQ(own.ranks(), group_ranks(group));
    auto sum = torch::full({3}, 1.0 + rank());
    own.all_reduce(sum);
    double wanted = 0;
    for (const int other : group_ranks(group)) {
      wanted += 1 + other;
    }
    EXPECT_TRUE(sum.equal(torch::full({3}, wanted)));
  }
  dp_barrier();
  mp_barrier();
}

TEST(Surface, GroupsNeedDdp) {
  if (world_size() != 2) {
    GTEST_SKIP() << "one replica";
  }
  init(config_of(2, 2));
  const Ended ended;
  EXPECT_THAT(
      error_of<ConfigError>([&] { process_group(Group::kMP); }), HasSubstr("\"ddp\": true"));
}

// A barrier holds whoever comes early: the rank that is late says so first.
TEST(Surface, BarriersWaitForTheirGroup) {
  init(every_group());
  const Ended ended;
  for (const Group group : {Group::kDP, Group::kMP}) {
    const int size = static_cast<int>(group_ranks(group).size());
    if (size == 1) {
      continue;
    }
    barrier();
    const auto start = std::chrono::steady_clock::now();
    if (process_group(group).rank() == size - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    group == Group::kDP ? dp_barrier() : mp_barrier();
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(150));
  }
}

TEST(Surface, ObjectsGoAroundInEveryGroup) {
  init(every_group());
  const Ended ended;
  using Object = std::map<std::string, std::vector<torch::Tensor>>;
  for (const Group group : kGroups) {
    SCOPED_TRACE(topology::name_of(group));
    const auto ranks = group_ranks(group);
    const int size = static_cast<int>(ranks.size());
    const int own = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
    const int next = (own + 1) % size;
    const int before = (own + size - 1) % size;
    if (size > 1) {
      // All send before any receives: send does not wait. Two messages keep their order.
      send(Object{{"of", {torch::full({2}, rank())}}}, next, group);
      send(std::string("second"), next, group);
      const auto first = recv_from<Object>(before, group);
      EXPECT_TRUE(first.at("of").at(0).equal(torch::full({2}, ranks[before])));
      EXPECT_EQ(recv_from<std::string>(before, group), "second");
    }
    for (int root = 0; root < size; ++root) {
      const auto got = broadcast(std::make_tuple(rank(), std::string("from")), root, group);
      EXPECT_EQ(got, std::make_tuple(ranks[root], std::string("from")));
      // The documentation's form: only the root broadcasts.
      EXPECT_EQ(own == root ? broadcast(root, root, group) : recv_from<int>(root, group), root);
    }
    EXPECT_EQ(allgather(rank(), group), ranks);
    EXPECT_THAT(
        error_of<ConfigError>([&] { send(1, size, group); }),
        HasSubstr(str("rank ", size, " of group")));
  }
}

TEST(Surface, ObjectsOfAnotherTypeOrCallAreErrorsThatNameIt) {
  init(every_group());
  const Ended ended;
  if (world_size() < 2) {
    GTEST_SKIP() << "needs two ranks";
  }
  if (rank() == 1) {
    send(7, 0);
    send(std::string("seven"), 0);
  } else if (rank() == 0) {
    using Pair = std::tuple<int, std::string>;
    EXPECT_THAT(
        error_of<CommError>([&] { recv_from<Pair>(1); }),
        AllOf(HasSubstr("recv_from of rank 1"), HasSubstr("of another type")));
    EXPECT_THAT(
        error_of<CommError>([&] { recv_from<torch::Tensor>(1); }),
        AllOf(HasSubstr("recv_from of rank 1"), HasSubstr("of another type")));
  }
  // A broadcast is not what was sent; who wants that receives it.
  if (rank() == 1) {
    send(8, 0);
  } else if (rank() == 0) {
    EXPECT_THAT(
        error_of<CommError>([&] { broadcast(0, 1); }),
        AllOf(HasSubstr("broadcast from rank 1 of group 'world'"), HasSubstr("sent with send")));
  }
  // One rank is in an exchange of the library, the other in one of the script.
  auto& world = *context().world;
  if (rank() == 1) {
    comm::gather_object(world, context().group(Group::kWorld), 1, 0);
  } else if (rank() == 0) {
    EXPECT_THAT(
        error_of<CommError>([&] { allgather(1); }),
        AllOf(
            HasSubstr("rank 0 is in allgather"),
            HasSubstr("rank 1 called an exchange of the library's own"),
            HasSubstr("in the same order")));
  }
}

TEST(Surface, RanksOfThisNode) {
  init(config_of(1, 1));
  const Ended ended;
  // Tests run on one node.
  EXPECT_EQ(local_size(), world_size());
  std::vector<int> wanted;
  for (int i = 0; i < world_size(); ++i) {
    wanted.push_back(i);
  }
  EXPECT_EQ(allgather(local_rank()), wanted);
}

/// Sets the launcher's variable while it lives.
class LauncherSays {
 public:
  explicit LauncherSays(const char* text) {
    ::setenv("SM_HP_MP_PARAMETERS", text, 1);
  }
  ~LauncherSays() {
    ::unsetenv("SM_HP_MP_PARAMETERS");
  }
  LauncherSays(const LauncherSays&) = delete;
  LauncherSays& operator=(const LauncherSays&) = delete;
};

TEST(Surface, WhatTheLauncherSaysIsInForce) {
  Config config = placed(2, 2, {{"second", 1}});
  config.seed = 11;
  {
    const LauncherSays says(R"({"microbatches": 4, "pipeline": "simple"})");
    init(config);
  }
  const Ended ended;
  Config wanted = config;
  wanted.microbatches = 4;
  wanted.pipeline = "simple";
  EXPECT_EQ(config_in_force(), wanted);
  DistributedModel model{House()};
  int calls = 0;
  auto forward = tessera::step([&](torch::Tensor x) {
    calls += is_tracing() ? 0 : 1;
    return model(x);
  });
  const torch::NoGradGuard no_grad;
  forward(torch::ones({4, kWidth}));
  EXPECT_EQ(calls, pp_rank() == 0 ? 4 : 0);
}

TEST(Surface, TheLauncherAlone) {
  {
    const LauncherSays bad("{\"microbatches\": 0}");
    EXPECT_THAT(
        error_of<ConfigError>([] { init(); }), HasSubstr("SM_HP_MP_PARAMETERS: microbatches"));
    EXPECT_FALSE(is_initialized());
  }
  const LauncherSays says("{\"microbatches\": 3, \"ddp\": true}");
  init();
  const Ended ended;
  Config wanted;
  wanted.microbatches = 3;
  wanted.ddp = true;
  EXPECT_EQ(config_in_force(), wanted);
}

} // namespace
} // namespace tessera::testing
