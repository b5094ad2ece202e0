// A script's own reduction of gradients in the place of the library's.
#include "tessera/data_parallel/comm_hook.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "tests/mpi/optim/support.h"

namespace tessera::testing {
namespace {

using data_parallel::GradientBucket;
using ::testing::HasSubstr;

constexpr int kSteps = 3;

struct HookCase {
  std::string text;
  Config config;
};

std::vector<HookCase> hook_cases() {
  std::vector<HookCase> list;
  for (const auto& [pp, tp] : std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
    if (pp * tp <= world_size() && (pp == 1 || world_size() == 4)) {
      Config config = config_of(Layout{pp, tp});
      config.ddp = true;
      list.push_back({Layout{pp, tp}.text(), config});
    }
  }
  return list;
}

ModelOptions small_buckets() {
  ModelOptions options;
  options.bucket_cap_mb = 0.0005;
  return options;
}

TensorMap trained(const Config& config, const Model::CommHook& hook, int from = 0) {
  init(config);
  const Ended ended;
  DistributedModel model(made(7), small_buckets());
  auto optimizer = sgd(model.parameters());
  auto train_step = step_of(model);
  for (int step = 0; step < kSteps; ++step) {
    if (step == from) {
      model.register_comm_hook(hook);
    }
    const Batch mine = part_of(random_batches(24)(step), data_size(), data_rank());
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  return model.state_dict();
}

/// What the library does.
std::shared_ptr<comm::Work> average(GradientBucket& bucket) {
  return bucket.group.scaled_sum_async(bucket.buffer, bucket.scale);
}

/// The same without a collective that goes on beside the backward.
std::shared_ptr<comm::Work> average_now(GradientBucket& bucket) {
  bucket.group.all_reduce(bucket.buffer);
  bucket.buffer.mul_(bucket.scale);
  return nullptr;
}

TEST(CommHook, OfAnAverageTrainsTheSame) {
  for (const HookCase& entry : hook_cases()) {
    const TensorMap wanted = trained(entry.config, nullptr);
    expect_state(trained(entry.config, average), wanted, entry.text, 1e-6);
    expect_state(trained(entry.config, average_now), wanted, entry.text, 1e-6);
    expect_state(trained(entry.config, average, 1), wanted, entry.text, 1e-6);
  }
}

/// Takes one of two layers, as an integer in the batch says.
struct TwoWaysImpl : torch::nn::Module {
  TwoWaysImpl() {
    torch::manual_seed(7);
    first = register_module("first", nn::Linear(kWidth, kWidth));
    left = register_module("left", nn::Linear(kWidth, kWidth));
    right = register_module("right", nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x, std::int64_t way) {
    return way == 0 ? left(first(x)) : right(first(x));
  }
  nn::Linear first{nullptr}, left{nullptr}, right{nullptr};
};
TESSERA_MODULE(TwoWays);

TensorMap trained_in_two_ways(const Model::CommHook& hook) {
  Config config = config_of(Layout{1, 1});
  config.ddp = true;
  init(config);
  const Ended ended;
  DistributedModel<TwoWays> model(TwoWays(), small_buckets());
  auto optimizer = sgd(model.parameters());
  model.register_comm_hook(hook);
  const torch::Tensor x = torch::ones({4, kWidth});
  for (int at = 0; at < kSteps; ++at) {
    const std::int64_t way = (data_rank() + at) % 2;
    auto train_step = tessera::step(
        [&](const torch::Tensor& mine) { model.backward(model(mine, way).pow(2).mean()); });
    optimizer.zero_grad();
    train_step(x);
    optimizer.step();
  }
  return model.state_dict();
}

// A bucket of the layer that a replica leaves out comes at the end of its step, while the other
// replica's hook waits for it in its backward.
TEST(CommHook, MayWaitWhereReplicasTakeOtherBranches) {
  const TensorMap wanted = trained_in_two_ways(nullptr);
  expect_state(trained_in_two_ways(average_now), wanted, "waiting", 1e-6);
}

// What it leaves is what the optimizer gets.
TEST(CommHook, DecidesWhatGradientsAre) {
  for (const HookCase& entry : hook_cases()) {
    init(entry.config);
    const Ended ended;
    DistributedModel model(made(7), small_buckets());
    std::set<std::string> seen;
    std::vector<std::string> problems;
    bool last = false;
    model.register_comm_hook([&](GradientBucket& bucket) {
      std::int64_t elements = 0;
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        seen.insert(bucket.parameters[i]);
        elements += bucket.elements[i];
      }
      if (elements != bucket.buffer.numel() || bucket.group.size() < 1) {
        problems.push_back("elements");
      }
      last = last || bucket.last;
      bucket.buffer.fill_(0.25);
      return std::shared_ptr<comm::Work>();
    });
    const Batch mine = part_of(random_batches(24)(0), data_size(), data_rank());
    step_of(model)(mine.x, mine.y);
    EXPECT_TRUE(problems.empty());
    if (dp_size() == 1) {
      EXPECT_TRUE(seen.empty());
      continue;
    }
    EXPECT_TRUE(last) << entry.text;
    for (const auto& [name, parameter] : model.local_parameters()) {
      EXPECT_TRUE(seen.contains(name)) << entry.text << ", " << name;
      EXPECT_TRUE(parameter.grad().equal(torch::full_like(parameter, 0.25))) << entry.text << name;
    }
    model.register_comm_hook(nullptr); // the library averages again
    model.zero_grad();
    step_of(model)(mine.x, mine.y);
    for (const auto& [name, parameter] : model.local_parameters()) {
      EXPECT_FALSE(parameter.grad().equal(torch::full_like(parameter, 0.25))) << name;
    }
  }
}

// One rank's, in a bucket of a layer that tensor parallelism divides and other pipeline stages do
// not have.
TEST(CommHook, ItsErrorIsOneOfAllRanks) {
  for (const HookCase& entry : hook_cases()) {
    init(entry.config);
    const Ended ended;
    DistributedModel model(made(7), small_buckets());
    bool fails = false;
    model.register_comm_hook([&](GradientBucket& bucket) {
      const auto& names = bucket.parameters;
      const bool planted = std::count(names.begin(), names.end(), "c.weight") != 0;
      if (fails && planted && rank() == world_size() - 1) {
        throw std::runtime_error("planted in the hook");
      }
      return average(bucket);
    });
    if (dp_size() == 1) {
      continue;
    }
    const Batch mine = part_of(random_batches(24)(0), data_size(), data_rank());
    for (const bool planted : {true, false, true, false}) { // in the first step, and in a later one
      fails = planted;
      model.zero_grad();
      const auto run = [&] { step_of(model)(mine.x, mine.y); };
      if (planted) {
        EXPECT_THAT(
            error_of<UserError>(run),
            AllOf(HasSubstr(": the hook"), HasSubstr("planted in the hook")))
            << entry.text;
      } else {
        run();
      }
    }
  }
}

// Additions to a bucket that has left come to the hook at the end of the step.
TEST(CommHook, ItsErrorOnLatePartsIsOneOfTheirStep) {
  for (const HookCase& entry : hook_cases()) {
    init(entry.config);
    const Ended ended;
    if (dp_size() == 1) {
      continue;
    }
    DistributedModel model(made(7), small_buckets());
    std::map<std::pair<std::string, int>, int> calls; // of a bucket in a step
    bool fails = false;
    model.register_comm_hook([&](GradientBucket& bucket) {
      if (++calls[{bucket.parameters.front(), bucket.index}] == 2 && fails && rank() == 1) {
        throw std::runtime_error("planted behind the bucket");
      }
      return average(bucket);
    });
    bool twice = false;
    auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
      for (int pass = 0; pass < (twice ? 2 : 1); ++pass) {
        model.backward(torch::mse_loss(model(x), y));
      }
    });
    const Batch mine = part_of(random_batches(24)(0), data_size(), data_rank());
    const auto run = [&] {
      calls.clear();
      model.zero_grad();
      train_step(mine.x, mine.y);
    };
    run();
    twice = true;
    fails = true;
    EXPECT_THAT(error_of<UserError>(run), HasSubstr("planted behind the bucket")) << entry.text;
    fails = false;
    twice = false;
    run(); // and not in the next one
  }
}

// Another tensor in the place of the buffer would be averages that nobody reads.
static_assert(
    !std::is_assignable_v<decltype((std::declval<GradientBucket&>().buffer)), at::Tensor>);

TEST(CommHook, SaysWhatItNeeds) {
  const auto refusal = [](Config config, ModelOptions options = {}) {
    init(config);
    const Ended ended;
    DistributedModel model(made(7), options);
    return error_of<ConfigError>([&] { model.register_comm_hook(average); });
  };
  Config config = hook_cases().front().config;
  ModelOptions late;
  late.overlapping_allreduce = false;
  EXPECT_THAT(refusal(config, late), HasSubstr("leave ModelOptions::overlapping_allreduce true"));
  config.shard_optimizer_state = true;
  EXPECT_THAT(refusal(config), HasSubstr("leave the key out"));
  if (world_size() == 2) {
    EXPECT_THAT(refusal(config_of(Layout{2, 1})), HasSubstr("write \"ddp\": true"));
  }
}

} // namespace
} // namespace tessera::testing
